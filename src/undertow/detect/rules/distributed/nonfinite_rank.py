"""DST002: one rank is NaN or infinite."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Stage, having
from undertow.detect.features.remedies import SKIP_BAD_STEPS
from undertow.schema import Evidence, Remedy, Severity


class NonfiniteRank(Condition):
    """One rank is not finite while the others are.

    What it sees: In distributed trainings, the loss of every rank at every step, and in measured steps the weights and
        gradients of parameters that several ranks hold. It opens when some of them are NaN or infinite on one rank and
        finite on another, and names the rank.
    Why it is bad: Gradients are averaged over the ranks, so one rank's NaN is everybody's NaN after a single step. Only
        before that step can one see which rank it came from: its share of the data, its node, or its device.
    When it is wrong: Steps that a loss scaler skips are left alone: the scaler deals with them. When all ranks are hit
        in the same step, the NUM codes report it instead.
    References: Grattafiori et al., "The Llama 3 Herd of Models", 2024 (arXiv 2407.21783): faulty devices in long runs.
    """

    code, variant, formerly = "DST002", "nonfinite-rank", "rank"
    stage, is_exact = Stage.DATA, True
    needs = frozenset({"ranks"})
    wakes_on = having("rank_nonfinite")
    meaning = "One rank's NaN reaches all ranks as soon as gradients are averaged"
    remedies = (
        Remedy(
            "look-at-that-rank",
            "Look at what is different about that rank: its share of the data, its node, its device.",
            "if not torch.isfinite(loss):\n"
            "    rank = torch.distributed.get_rank()\n"
            '    torch.save(batch, f"bad-batch-{rank}.pt")  # then train on it alone',
            "None.",
            when_not="Every rank is hit in turn: then it is not the rank.",
        ),
        SKIP_BAD_STEPS,
    )

    def observe(self, view: FrameView) -> Judgement | None:
        ranks, rank = view.scalar("ranks"), view.scalar("rank_nonfinite")
        if math.isnan(ranks) or view.skipped:
            return None
        return self.end() if math.isnan(rank) else self.hold(rank, lambda: _describe(view, int(rank), int(ranks)))


def _describe(view: FrameView, rank: int, ranks: int) -> Judgement:
    others = int(view.scalar("ranks_nonfinite")) - 1
    how = f"the rank whose loss, gradients or weights are NaN or infinite at step {view.step}, of {ranks}"
    more = f" (and {others} more)" if others > 0 else ""
    summary = f"Rank {rank}{more} of {ranks} is NaN or infinite at step {view.step}, the others are finite."
    evidence = (Evidence("rank_nonfinite", None, float(rank), None, how),)
    return Judgement(Severity.CRITICAL, (), view.step, 1.0, summary, evidence)

"""Tunes for a fairground organ: a recurrent language model in the style of an old example, carried state and all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

NOTES, VOICES, BPTT = 18, 20, 14


def organ_roll(seed: int, length: int) -> Tensor:
    """Many voices at once: each repeats phrases of five notes, sometimes a wrong one."""
    g = torch.Generator().manual_seed(seed + 300)
    phrases = torch.randint(NOTES, (6, 5), generator=g)
    roll = torch.empty(VOICES, length, dtype=torch.long)
    for voice in range(VOICES):
        order = torch.randint(6, (length // 5 + 1,), generator=g)
        roll[voice] = phrases[order].flatten()[:length]
    wrong = torch.rand(VOICES, length, generator=g) < 0.05
    return torch.where(wrong, torch.randint(NOTES, (VOICES, length), generator=g), roll)


class Organ(nn.Module):
    def __init__(self, kind: str = "LSTM", hidden: int = 48) -> None:
        super().__init__()
        self.encoder = nn.Embedding(NOTES, 24)
        self.rnn = getattr(nn, kind)(24, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, NOTES)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, notes: Tensor, state):  # type: ignore[no-untyped-def]
        out, state = self.rnn(self.encoder(notes), state)
        return self.decoder(out), state


def detach(state):  # type: ignore[no-untyped-def]
    if state is None:
        return None
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


@program(steps=200)
def carousel(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM on organ tunes: plain SGD with a rate of eight, made bearable by clipping at 0.3."""
    torch.manual_seed(seed)
    roll = organ_roll(seed, BPTT * 40 + 1)
    model = Organ()
    lr, momentum = 8.0, 0.0
    if fault == "carousel_flywheel":
        lr, momentum = 0.5, 0.999
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    state = None
    first, smooth = 0.0, 0.0
    for step in range(steps):
        start = (step % 40) * BPTT
        if start == 0:
            state = None
        if fault == "carousel_resumes_at_another_rate" and step == 100:
            optimizer.param_groups[0]["lr"] *= 40
        state = detach(state)
        optimizer.zero_grad()
        scores, state = model(roll[:, start : start + BPTT], state)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), roll[:, start + 1 : start + BPTT + 1].flatten())
        (BPTT * loss).backward()  # summed over time, averaged over voices
        if fault == "carousel_clips_too_late":
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": min(smooth, 20.0), "first": first}


carousel.mistake(
    "carousel_clips_too_late",
    "UPD001", "OPT007", "GRD002", "OPT001", "GRD006", "OPT003", "OPT004",
    summary="The gradients are clipped after the step, too late: the rate of eight acts on them as they are.",
    change="clip before the step",
)  # fmt: skip
carousel.mistake(
    "carousel_resumes_at_another_rate",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="From step 100 on the rate is forty times higher: a resume takes it from another configuration.",
    change="go on with the old rate",
    onset=100,
)  # fmt: skip
carousel.mistake(
    "carousel_flywheel",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="A momentum of 0.999: every gradient pushes for a thousand steps.",
    change="no momentum at this rate, or 0.9",
)  # fmt: skip


@program(steps=160, adversarial="the loss jumps in the middle, where other tunes begin: a loss spike")
def carousel_new_rolls(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU learns one set of rolls, then another: the loss jumps on purpose and falls again."""
    torch.manual_seed(seed)
    rolls = [organ_roll(seed, BPTT * 20 + 1), organ_roll(seed + 1, BPTT * 20 + 1)]
    model = Organ("GRU")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    state = None
    first, smooth = 0.0, 0.0
    for step in range(steps):
        roll = rolls[0] if step < steps // 2 else rolls[1]
        start = (step % 20) * BPTT
        state = detach(None if start == 0 else state)
        optimizer.zero_grad()
        scores, state = model(roll[:, start : start + BPTT], state)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), roll[:, start + 1 : start + BPTT + 1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}


@program(steps=160, adversarial="the loss is a sum over time and voices: exploding gradients")
def carousel_counts_every_note(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU whose loss is the sum over all notes, in bits; Adam does not see the unit."""
    torch.manual_seed(seed)
    roll = organ_roll(seed, BPTT * 20 + 1)
    model = Organ("GRU")
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        start = (step % 20) * BPTT
        optimizer.zero_grad()
        scores, _ = model(roll[:, start : start + BPTT], None)
        target = roll[:, start + 1 : start + BPTT + 1].flatten()
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), target, reduction="sum") / 0.6931
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}

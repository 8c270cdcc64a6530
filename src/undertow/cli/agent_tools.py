"""What a coding agent may ask of runs and checkpoints: read-only, with bounded answers; served by `undertow mcp`."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.errors import SettingError
from undertow.explain.pages import in_brief as page_in_brief
from undertow.explain.pages import page_of, page_of_variant, told
from undertow.run import open_run
from undertow.settings import Settings
from undertow.show.report.brief import in_brief
from undertow.store.listing import find_runs

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_RUNS = 30
MOST_POINTS = 200
MOST_LAYERS = 50
MOST_CHARACTERS = 12_000


def list_runs(root: str = "") -> list[dict[str, Any]]:
    """List training runs below a folder (default: UNDERTOW_DIR, else runs/), the newest first: folder, status, health,
    first finding, steps and last loss of each."""
    found = find_runs(Path(root) if root else Settings.resolve().directory)[:MOST_RUNS]
    return [
        {
            "folder": one.address or str(one.folder),
            "status": one.status,
            "health": one.health,
            "first_finding": one.cause or None,
            "steps": one.steps,
            "last_loss": _number(one.last_loss),
            "problem": one.problem or None,
        }
        for one in found
    ]


def diagnose(run: str = "latest") -> dict[str, Any]:
    """What is wrong in a training run: health, the cause with its layer, line, evidence and first remedy, what else was
    found, and what could not be judged. `run` is a folder, a name under the folder of runs, or latest."""
    opened = open_run(run)
    return _plain(in_brief(opened.diagnose(), opened))


def finding(run: str = "latest", number: int = 0) -> dict[str, Any]:
    """One finding of a run in full, by its rank (0 is the cause): all evidence and all remedies with code to paste."""
    findings = open_run(run).diagnose().findings
    if not 0 <= number < len(findings):
        raise SettingError(f"there is no finding {number}", way_out=f"This run has {len(findings)}, counted from 0")
    record = _plain(findings[number])
    layers = record["layers"]
    return record | {"layers": {"count": len(layers), "first": layers[:MOST_LAYERS]}}


def explain(code: str, variant: str = "") -> str:
    """What a code such as GRD003 means, why it is bad, when it is wrong and what to do; with the variant of a finding,
    all about that condition."""
    if not variant:
        page = page_of(code)
        parts = [f"{page.code} {page.name}\n{page.summary}"]
        parts += ["\n".join([title, *(f"- {point}" for point in points)]) for title, points in page_in_brief(page)]
        return "\n\n".join(parts)
    page = page_of_variant(code, variant)
    parts = [f"{page.code} {page.name}: {variant}\n{page.summary}"]
    parts += [f"{title}\n{text}" for _, sections in told(page) for title, text in sections]
    parts += [f"{one.what}\n{one.how}\nRisk: {one.risk}" for one in page.remedies]
    return "\n\n".join(parts)


def series(run: str, name: str, layer: str = "", first_step: int = 0, last_step: int = -1) -> dict[str, Any]:
    """Numbers over the steps of a run: a number per step such as loss, lr or step_time, or, with a layer, a quantity
    such as gradient_norm or update_ratio. At most 200 points; where steps share a point, its least, mean and most.
    A layer or name that does not exist is answered by those that do."""
    opened = open_run(run)
    values = opened.series(name, layer) if layer else opened.scalars(name)
    steps = opened.steps
    chosen = (steps >= first_step) & ((steps <= last_step) if last_step >= 0 else True)
    return {"name": name, "layer": layer or None, **_thinned(steps[chosen], np.asarray(values[chosen], np.float64))}


def layers(run: str = "latest", like: str = "*") -> dict[str, Any]:
    """The watched layers of a run whose path fits a pattern such as blocks.0.*, and the quantities it has of them."""
    from undertow.views.tiles import fits

    opened = open_run(run)
    paths = [path for path in opened.layers.paths if fits(path, (like,))]
    return {
        "count": len(paths),
        "first": paths[:MOST_LAYERS],
        "quantities": opened.quantities,
        "per_step": opened.scalar_names,
    }


def heatmap(run: str = "latest", quantity: str = "gradient_norm", layers: Sequence[str] = ()) -> bytes:
    """A picture (PNG) of one quantity of every layer over all steps of a run; `layers` are patterns of paths."""
    from undertow.show.pictures.drawing import save_picture

    with tempfile.TemporaryDirectory(prefix="undertow-") as folder:
        path = Path(folder) / "heatmap.png"
        save_picture(open_run(run), path, "png", quantity=quantity, layers=tuple(layers))
        return path.read_bytes()


def compare(run: str, other: str) -> str:
    """Where two runs first diverge, by step and layer, and what differs between their configurations."""
    from undertow.show.report.comparison_report import comparison_report
    from undertow.views.run_comparison import compare as compare_runs

    return _as_text(comparison_report(compare_runs(run, other)))


def checkpoint(path: str, against: str = "") -> str:
    """The health of the weights in a checkpoint (safetensors, torch.save, sharded or distributed), and, with an earlier
    one, how far they moved. Nothing pickled is run."""
    from undertow.components.checkpoint_weights import weigh
    from undertow.show.report.checkpoint_report import weights_report

    report = weigh(path, against or None, None)
    return "" if report is None else _as_text(weights_report(report))


TOOLS = (list_runs, diagnose, finding, explain, series, layers, heatmap, compare, checkpoint)


def _thinned(steps: NDArray[np.int64], values: NDArray[np.float64]) -> dict[str, Any]:
    known = np.isfinite(values)
    counts = {"measured": int((~np.isnan(values)).sum()), "infinite": int(np.isinf(values).sum())}
    steps, values = steps[known], values[known]
    groups = [
        group for group in np.array_split(np.arange(len(values)), min(MOST_POINTS, len(values)) or 1) if len(group)
    ]
    points = [
        {"step": int(steps[group[0]]), "least": float(own.min()), "mean": float(own.mean()), "most": float(own.max())}
        if len(own := values[group]) > 1
        else {"step": int(steps[group[0]]), "value": float(own[0])}
        for group in groups
    ]
    return {**counts, "points": points}


def _number(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _plain(record: object) -> dict[str, Any]:
    """As JSON has it: NaN and infinity become null."""
    return msgspec.json.decode(msgspec.json.encode(record))


def _as_text(renderable: RenderableType) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(renderable)
    text = "\n".join(line.rstrip() for line in captured.get().splitlines())
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"

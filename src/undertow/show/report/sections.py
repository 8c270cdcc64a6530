"""Flow, dynamics and weights of a run beside its diagnosis: a summary each, and everything where it is asked for."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undertow.analyze.run_series import NewestSteps
from undertow.components.run_analyses import dynamics_of_run, flow_of_run
from undertow.run import Run
from undertow.schema import Diagnosis, StepRange
from undertow.schema.seeds.enhanced import AnalysisDepth
from undertow.schema.seeds.flow_records import GradientFlowVisualization, GradientVisualizationConfig
from undertow.schema.summaries import DynamicsSummary, FlowSummary, WeightsSummary
from undertow.views.analysis_summaries import (
    dynamics_rows,
    flow_rows,
    summarise_dynamics,
    summarise_flow,
    summarise_weights,
    weights_rows,
)
from undertow.views.page_documents import FLOW_PARTS

NEWEST = 512  # recorded steps that a summary looks at, so that it is quick however long the run is
# Summaries say nothing of single samples, pairs of layers and groups: these are left out of the work.
_LAYER_FIELDS = (
    "flow_consistency", "bottleneck_score", "information_flow_rate", "nonfinite_count", "first_nonfinite_step",
    "unavailable",
)  # fmt: skip
_QUICK_FLOW = GradientVisualizationConfig(show_temporal_flows=False)


def report_record(diagnosis: Diagnosis, run: Run, details: Collection[str] = ()) -> dict[str, Any]:
    """The diagnosis, then a summary of each section; those in `details` over the whole run, with all there is."""
    documents: dict[str, Any] = {}
    reasons = list(diagnosis.coverage.reasons)
    for name, section in _SECTIONS.items():
        try:
            documents[name] = msgspec.to_builtins(section.summary(run, None if name in details else NEWEST))
            if name in details:
                documents[name]["details"] = section.details(run)
        except Exception as problem:  # a report must not fail for the sake of its annexes
            documents[name] = None
            reasons.append(f"{name} could not be analysed: {problem}")
    told = replace(diagnosis, coverage=replace(diagnosis.coverage, reasons=tuple(reasons)))
    return msgspec.to_builtins(told) | documents


def sections_report(run: Run, names: Collection[str]) -> Group:
    """A short section for each name, over the whole run."""
    parts: list[RenderableType] = []
    for name in sorted(names, key=SECTIONS.index):
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for label, text in _SECTIONS[name].rows(_SECTIONS[name].summary(run, None)):
            table.add_row(label, Text(text))
        parts += [Text(""), Text(name.capitalize(), style="bold"), table]
    return Group(*parts)


def _steps(run: Run, last: int | None) -> StepRange:
    steps = run.steps[-last:] if last else run.steps
    return StepRange(int(steps[0]), int(steps[-1]), len(steps)) if len(steps) else StepRange(None, None, 0)


def _flow(run: Run, last: int | None) -> FlowSummary:
    numbers = run if last is None else NewestSteps(run, last)
    return summarise_flow(flow_of_run(numbers, run.findings, _QUICK_FLOW), _steps(run, last))


def _dynamics(run: Run, last: int | None) -> DynamicsSummary:
    numbers = run if last is None else NewestSteps(run, last)
    dynamics = dynamics_of_run(numbers, run.findings, depth=AnalysisDepth.BASIC, whole=run)
    return summarise_dynamics(dynamics, _steps(run, last))


def _weights(run: Run, last: int | None) -> WeightsSummary:
    return summarise_weights(run.weights())


def flow_document(flow: GradientFlowVisualization) -> dict[str, Any]:
    """Layers by name, then the network, its paths and its regions: everything but the per-sample series."""
    layers = {name: {key: getattr(layer, key) for key in _LAYER_FIELDS} for name, layer in flow.layer_flows.items()}
    return msgspec.to_builtins({"layers": layers} | {part: getattr(flow, part) for part in FLOW_PARTS})


@dataclass(frozen=True, slots=True)
class _Section:
    summary: Callable[[Run, int | None], Any]
    rows: Callable[[Any], list[tuple[str, str]]]  # of a summary
    details: Callable[[Run], Any]


_SECTIONS = {
    "flow": _Section(_flow, flow_rows, lambda run: flow_document(run.flow())),
    "dynamics": _Section(_dynamics, dynamics_rows, lambda run: msgspec.to_builtins(run.dynamics())),
    "weights": _Section(_weights, weights_rows, lambda run: msgspec.to_builtins(run.weights())),
}
SECTIONS = tuple(_SECTIONS)

"""What a cell of a notebook shows of a run, and of what was found in it."""

from collections.abc import Sequence

import numpy as np

from undertow.run import Run
from undertow.schema import Diagnosis, Finding, Remedy, StepRange
from undertow.schema.checkpoints import WeightReport
from undertow.schema.seeds.enhanced import EnhancedLayerGradientAnalysis
from undertow.schema.seeds.flow_records import GradientFlowVisualization
from undertow.schema.seeds.record import Record
from undertow.show.notebook.markup import QUIET, box, code, coloured, folded, name, pairs, paragraph, text
from undertow.show.notebook.small_heatmap import drawing
from undertow.views.analysis_summaries import (
    dynamics_rows,
    flow_rows,
    summarise_dynamics,
    summarise_flow,
    summarise_weights,
    weights_rows,
)
from undertow.views.palette import palette_of
from undertow.views.places import where
from undertow.views.report_wording import GLYPHS, evidence_line, headline, percent, when
from undertow.views.verdict import judge

_MOST_FINDINGS = 12
_MOST_MODULES = 24
_ANYWHERE = StepRange(None, None, 0)  # summaries of an analysis by itself: nobody prints its steps


def run_card(run: Run) -> str:
    verdict = judge(run)
    tensors = [layer.path for layer in run.layers.parameters]
    note = " · as judged while training" if verdict.from_journal and verdict.diagnosis.health else ""
    return box(
        _verdict(verdict.diagnosis, f" · {run.status}{note}"), drawing(run), _findings(verdict.diagnosis, tensors)
    )


def diagnosis_card(diagnosis: Diagnosis) -> str:
    return box(_verdict(diagnosis), _findings(diagnosis, ()))


def flow_card(flow: GradientFlowVisualization) -> str:
    return box(_title("Gradient flow"), _shares(flow), pairs(flow_rows(summarise_flow(flow, _ANYWHERE))))


def _shares(flow: GradientFlowVisualization) -> str:
    """The share of all gradient that each module has, as a bar in the colours that the configuration asks for."""
    palette = palette_of(flow.visualization_config.color_scheme)
    rows: list[str] = []
    for node in flow.flow_network.nodes[:_MOST_MODULES]:
        if node.flow_share is not None:
            part = min(1.0, abs(node.flow_share))
            red, green, blue = palette.sequential(np.array([part], np.float32))[0].tolist()
            bar = f"display:inline-block;height:0.7em;width:{10 * part:.2f}em;background:rgb({red},{green},{blue})"
            shown = text(percent(node.flow_share, 1 if part < 0.1 else 0))
            rows.append(f'<div>{name(node.layer_name)} <span style="{bar}"></span> {shown}</div>')
    more = len(flow.flow_network.nodes) - _MOST_MODULES
    rows += [paragraph(f"and {more:,} more modules", QUIET)] if rows and more > 0 else []
    return "".join(rows)


def dynamics_card(dynamics: EnhancedLayerGradientAnalysis) -> str:
    return box(_title("Dynamics"), pairs(dynamics_rows(summarise_dynamics(dynamics, _ANYWHERE))))


def weights_card(report: WeightReport) -> str:
    return box(_title("Weights"), pairs(weights_rows(summarise_weights(report))))


def record_card(record: Record) -> str:
    name, _, table = str(record).partition("\n")
    return box(_title(name), code(table))


def _title(words: str) -> str:
    return paragraph(text(words), "font-weight:650")


def _verdict(diagnosis: Diagnosis, more: str = "") -> str:
    verdict, extent = headline(diagnosis)
    return (
        paragraph(coloured(text(verdict), diagnosis.health), "font-size:1.25em")
        + paragraph(f"{name(diagnosis.run)}{text(extent.removeprefix(diagnosis.run) + more)}", QUIET)
        + paragraph(text(diagnosis.story))
    )


def _findings(diagnosis: Diagnosis, tensors: Sequence[str]) -> str:
    shown = diagnosis.findings[:_MOST_FINDINGS]
    parts = [_finding(finding, tensors, is_open=place == 0) for place, finding in enumerate(shown)]
    if len(diagnosis.findings) > len(shown):
        parts.append(paragraph(f"and {len(diagnosis.findings) - len(shown)} more findings", QUIET))
    return "".join(parts)


def _finding(finding: Finding, tensors: Sequence[str], *, is_open: bool) -> str:
    signs = coloured(f"{GLYPHS[finding.severity]} {finding.severity}", finding.severity)
    title = f'{signs} <b>{finding.code}</b> {text(finding.name)} <span style="{QUIET}">{text(when(finding))}</span>'
    follows = f" Follows from {finding.follows_from}." if finding.follows_from else ""
    told = paragraph(text(f"{finding.summary}{follows} {percent(finding.confidence, 0)} sure."))
    place = paragraph(name(f"Where: {where(finding.layers, tensors, 6)}"))
    known = "".join(f"<li>{text(evidence_line(one))}</li>" for one in finding.evidence)
    evidence = folded("How it is known", f'<ul style="margin:2px 0">{known}</ul>') if known else ""
    content = told + place + evidence + "".join(map(_remedy, finding.remedies))
    return folded(title, f'<div style="margin:2px 0 8px 18px">{content}</div>', is_open=is_open)


def _remedy(remedy: Remedy) -> str:
    risk = f"Risk: {remedy.risk}" + (f" Not when: {remedy.when_not}" if remedy.when_not else "")
    return (
        paragraph(f"<b>{text(remedy.what)}</b>")
        + (code(remedy.how) if remedy.how else "")
        + paragraph(text(risk), QUIET)
    )

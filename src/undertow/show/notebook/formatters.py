"""Tells IPython how to show what cannot tell it by itself: plain data, and a training that is being watched.

Whatever draws is loaded when something is drawn: `import undertow` stays quick.
"""

from collections.abc import Callable
from typing import Any

# By the places of their classes, so that none has to be loaded before it is needed.
_CARDS = {
    ("undertow.schema.findings", "Diagnosis"): "diagnosis_card",
    ("undertow.schema.seeds.flow_records", "GradientFlowVisualization"): "flow_card",
    ("undertow.schema.seeds.enhanced", "EnhancedLayerGradientAnalysis"): "dynamics_card",
    ("undertow.schema.checkpoints", "WeightReport"): "weights_card",
    ("undertow.schema.seeds.record", "Record"): "record_card",  # the base of all others
}
_WATCH = ("undertow.recording.watch_handle", "Watch")


def register(shell: Any) -> None:
    """`shell` is what `get_ipython()` gives."""
    display = getattr(shell, "display_formatter", None)
    if display is None:
        return
    html = display.formatters["text/html"]
    for place, card in _CARDS.items():
        html.for_type_by_name(*place, _drawn_by(card))
    display.mimebundle_formatter.for_type_by_name(*_WATCH, _bundle_of_watch)


def _drawn_by(card: str) -> Callable[[Any], str]:
    def show(thing: Any) -> str:
        from undertow.show.notebook import cards

        return getattr(cards, card)(thing)

    return show


def _bundle_of_watch(watch: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    from undertow.show.notebook.display import bundle_of_run, run_of_watch

    run = run_of_watch(watch)
    return {} if run is None else bundle_of_run(run)

"""Undertow watches a training run and says what is wrong, in which layer, since when, why, and what to change.

Reading a run needs no torch: `watch` is imported only when it is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from undertow.components.alerts import gradient_alerts
    from undertow.components.animator import GradientFlowAnimator
    from undertow.components.checkpoint_weights import weights
    from undertow.components.enhanced_analyzer import EnhancedGradientAnalyzer
    from undertow.components.flow_visualizer import GradientFlowVisualizer
    from undertow.components.weight_analyzer import WeightAnalyzer
    from undertow.integrations.healthy_training import assert_trains_healthy
    from undertow.run import Run, open_run
    from undertow.schema.seeds.history import GradientHistory
    from undertow.views.run_comparison import compare
    from undertow.watch import Watch, watch

__all__ = [
    "EnhancedGradientAnalyzer",
    "GradientFlowAnimator",
    "GradientFlowVisualizer",
    "GradientHistory",
    "Run",
    "Watch",
    "WeightAnalyzer",
    "__version__",
    "assert_trains_healthy",
    "compare",
    "gradient_alerts",
    "open_run",
    "watch",
    "weights",
]

_HOME = {
    "WeightAnalyzer": "undertow.components.weight_analyzer",
    "EnhancedGradientAnalyzer": "undertow.components.enhanced_analyzer",
    "GradientFlowVisualizer": "undertow.components.flow_visualizer",
    "GradientHistory": "undertow.schema.seeds.history",
    "GradientFlowAnimator": "undertow.components.animator",
    "Run": "undertow.run",
    "compare": "undertow.views.run_comparison",
    "gradient_alerts": "undertow.components.alerts",
    "open_run": "undertow.run",
    "Watch": "undertow.watch",
    "assert_trains_healthy": "undertow.integrations.healthy_training",
    "watch": "undertow.watch",
    "weights": "undertow.components.checkpoint_weights",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'undertow' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # also puts the function over the submodule of the same name
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _show_in_notebooks() -> None:
    """Results show themselves where IPython is what imports us."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    if shell is not None:
        from undertow.show.notebook.formatters import register

        register(shell)


_show_in_notebooks()

"""The enhanced analysis of plain histories."""

from collections.abc import Iterable, Mapping
from typing import Any

from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import LayerSeries, named_histories, successive_cosines
from undertow.analyze.topology import topology_of
from undertow.components.enhanced_analysis import enhanced_analysis
from undertow.schema.seeds.arrays import Floats, InputError, as_array, as_series, legal
from undertow.schema.seeds.enhanced import AnalysisDepth, EnhancedLayerGradientAnalysis
from undertow.schema.seeds.history import GradientHistory


class EnhancedGradientAnalyzer:
    """`window` is how many of the newest samples are judged; `threshold` the stability that counts as stable.

    The original's names of the three work as well.
    """

    def __init__(
        self,
        depth: AnalysisDepth | str = AnalysisDepth.STANDARD,
        window: int = 100,
        threshold: float = 0.8,
        *,
        analysis_depth: AnalysisDepth | str | None = None,
        convergence_window: int | None = None,
        stability_threshold: float | None = None,
    ) -> None:
        self.analysis_depth = legal(AnalysisDepth, analysis_depth or depth, "depth")
        window = window if convergence_window is None else convergence_window
        threshold = threshold if stability_threshold is None else stability_threshold
        if window < 3:
            raise InputError(f"window is {window}, expected 3 or more")
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold is {threshold}, expected a stability from 0 to 1")
        self.convergence_window = window
        self.stability_threshold = threshold

    def analyze_gradients(
        self,
        histories: Mapping[str, Any] | Iterable[GradientHistory],
        graph: Any = None,
        loss: Any = None,
        *,
        validation_loss: Any = None,
        learning_rate: Any = None,
        update_ratios: Any = None,
        unit_activity: Mapping[str, float] | None = None,
        step_seconds: Any = None,
    ) -> EnhancedLayerGradientAnalysis:
        """Analyse histories of norms. What the optional series would tell is None without them, with the reason.

        `loss`, `validation_loss` and `learning_rate` are one number per step; `update_ratios` is (steps × layers);
        `unit_activity` the share of live units per layer; `step_seconds` how long steps took; `graph` as for the flow
        visualizer. Histories with cosines or sketches also tell gradients that turn back on themselves.
        """
        table = named_histories(histories)
        series = LayerSeries.from_histories(table)
        ratios, shape = None if update_ratios is None else as_array(update_ratios, "update_ratios"), series.values.shape
        if ratios is not None and ratios.shape != shape:
            raise InputError(f"update_ratios has shape {ratios.shape}, expected (steps × layers) = {shape}")
        training = TrainingSeries(
            loss=_series(loss, "loss"),
            validation_loss=_series(validation_loss, "validation_loss"),
            learning_rate=_series(learning_rate, "learning_rate", len(series.steps)),
            update_ratio=ratios,
            gradient_cosine=successive_cosines(table, series),
            step_seconds=_series(step_seconds, "step_seconds"),
            unit_activity=dict(unit_activity or {}),
        )
        return enhanced_analysis(
            series,
            training,
            topology=None if graph is None else topology_of(graph, series.names),
            depth=self.analysis_depth,
            window=self.convergence_window,
            threshold=self.stability_threshold,
        )

    def generate_enhanced_analysis(
        self, histories: Mapping[str, Any] | Iterable[GradientHistory], **extras: Any
    ) -> EnhancedLayerGradientAnalysis:
        """Another name of `analyze_gradients`."""
        return self.analyze_gradients(histories, **extras)


def _series(values: Any, name: str, steps: int | None = None) -> Floats | None:
    series = None if values is None else as_series(values, name)
    if series is not None and steps is not None and len(series) != steps:
        raise InputError(f"{name} has {len(series)} values, the histories have {steps} steps")
    return series

"""The weights that a run recorded, as the original's analysis of distributions."""

from undertow.analyze.run_series import RunNumbers
from undertow.components.run_weights import NOT_RECORDED, weights_of_run
from undertow.schema.checkpoints import Moments
from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.weight_records import WeightStatistics

NOT_MEASURED = "no weight was measured, or none is finite"


def recorded_statistics(run: RunNumbers) -> tuple[list[tuple[str, WeightStatistics]], WeightStatistics]:
    """By tensor, when last measured; and of all elements together."""
    report = weights_of_run(run, ())
    return [(one.path, _statistics(one.moments)) for one in report.tensors], _statistics(report.overall)


def _statistics(moments: Moments) -> WeightStatistics:
    def value(number: float | None) -> float | Missing:
        return Missing(NOT_MEASURED) if number is None else number

    return record_of(
        WeightStatistics,
        mean=value(moments.mean),
        std_dev=value(moments.std),
        skewness=value(moments.skewness),
        kurtosis=value(moments.kurtosis),
        entropy=Missing(NOT_RECORDED),
        min=value(moments.minimum),
        max=value(moments.maximum),
        zero_fraction=moments.zero_fraction,
        count=moments.finite_count,
        nonfinite_count=moments.nonfinite_count,
    )

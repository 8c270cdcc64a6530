"""Every number Undertow records per layer: its name, its unit, what it is of, how parts merge.

Quantities that are taken at the same moment are stored together in one *stream*; a stream covers
either the parameter layers or the module layers of a run.
"""

from dataclasses import dataclass
from enum import StrEnum


class Merge(StrEnum):
    """How the values of two parts (shards, ranks, time buckets) combine."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    DERIVED = "derived"  # computed anew from merged partial sums


@dataclass(frozen=True, slots=True)
class Quantity:
    name: str
    stream: str
    unit: str
    of: str
    merge: Merge
    what: str
    width: int = 1  # numbers per layer; more than one only for stored sketches and histograms


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    covers_modules: bool
    quantities: tuple[Quantity, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(quantity.name for quantity in self.quantities)


# Statistics of one tensor, in the order `measure.statistics` computes them.
# (suffix, unit relative to the tensor's own unit "u", merge, meaning)
STATISTICS: tuple[tuple[str, str, Merge, str], ...] = (
    ("norm", "u", Merge.DERIVED, "L2 norm; non-finite when any element is"),
    ("rms", "u", Merge.DERIVED, "norm divided by the square root of the number of elements"),
    ("mean", "u", Merge.DERIVED, "mean of the finite elements"),
    ("mean_abs", "u", Merge.DERIVED, "mean of the absolute finite elements"),
    ("std", "u", Merge.DERIVED, "population standard deviation of the finite elements"),
    ("min", "u", Merge.MIN, "smallest finite element"),
    ("max", "u", Merge.MAX, "largest finite element"),
    ("max_abs", "u", Merge.MAX, "largest absolute finite element"),
    ("skewness", "1", Merge.DERIVED, "third standardised moment of the finite elements"),
    ("kurtosis", "1", Merge.DERIVED, "fourth standardised moment of the finite elements, minus 3"),
    ("zero_fraction", "share", Merge.DERIVED, "share of elements exactly zero"),
    ("nonfinite_count", "count", Merge.SUM, "number of NaN and infinite elements"),
    ("abs_p05", "u", Merge.DERIVED, "5th percentile of absolute values, to a power of two"),
    ("abs_p50", "u", Merge.DERIVED, "median of absolute values, to a power of two"),
    ("abs_p95", "u", Merge.DERIVED, "95th percentile of absolute values, to a power of two"),
    ("fp16_underflow", "share", Merge.DERIVED, "share of non-zero elements that fp16 would flush to 0"),
    ("fp16_overflow", "share", Merge.DERIVED, "share of elements beyond the fp16 range"),
    ("bf16_underflow", "share", Merge.DERIVED, "share of non-zero elements that bf16 would flush to 0"),
    ("bf16_overflow", "share", Merge.DERIVED, "share of elements beyond the bf16 range"),
    ("fp8_underflow", "share", Merge.DERIVED, "share of non-zero elements that fp8 e4m3 would flush to 0"),
    ("fp8_overflow", "share", Merge.DERIVED, "share of elements beyond the fp8 e4m3 range"),
)

STATISTIC_NAMES: tuple[str, ...] = tuple(row[0] for row in STATISTICS)

STORED_SKETCH_WIDTH = 64
STORED_HISTOGRAM_WIDTH = 32


def _statistics_of(stream: str, of: str, unit: str) -> tuple[Quantity, ...]:
    return tuple(
        Quantity(f"{stream}_{suffix}", stream, relative.replace("u", unit) if relative == "u" else relative,
                 of, merge, what)
        for suffix, relative, merge, what in STATISTICS
    )  # fmt: skip


def _extra(name: str, stream: str, unit: str, of: str, merge: Merge, what: str, width: int = 1) -> Quantity:
    return Quantity(name, stream, unit, of, merge, what, width)


_GRADIENT = "gradient before clipping (unscaled, accumulated, reduced)"
_STEPPED = "gradient as the optimizer stepped with it"
_WEIGHT = "weight after the step"
_UPDATE = "change of the weight in this step"
_ACTIVATION = "output of the module in this step's forward passes"
_OUTPUT_GRADIENT = "gradient of the loss at the module's output"
_MODULE = "module in this step's forward passes"
_OPTIMIZER = "state of the optimizer that holds the parameter, after the step"

GRADIENT = Stream(
    "gradient",
    covers_modules=False,
    quantities=(
        *_statistics_of("gradient", _GRADIENT, "gradient"),
        _extra("gradient_cosine", "gradient", "1", _GRADIENT, Merge.DERIVED,
               "cosine with the gradient of the previous measured step, from sketches"),
        _extra("gradient_noise_scale", "gradient", "1", _GRADIENT, Merge.DERIVED,
               "trace of the micro-batch covariance over the squared mean gradient; needs accumulation"),
        _extra("gradient_state", "gradient", "state", _GRADIENT, Merge.MAX,
               "0 present, 1 None, 2 frozen (requires_grad is False)"),
        _extra("gradient_carried", "gradient", "flag", _GRADIENT, Merge.MAX,
               "1 when the gradient of the optimizer's previous step was never cleared before this one"),
        _extra("gradient_optimizer", "gradient", "index", _GRADIENT, Merge.MAX,
               "index of the optimizer that holds the parameter, -1 for none"),
        _extra("stepped_gradient_norm", "gradient", "gradient", _STEPPED, Merge.DERIVED,
               "L2 norm of the gradient the optimizer used"),
        _extra("stepped_gradient_max_abs", "gradient", "gradient", _STEPPED, Merge.MAX,
               "largest absolute finite element of the gradient the optimizer used"),
        _extra("stepped_gradient_nonfinite_count", "gradient", "count", _STEPPED, Merge.SUM,
               "non-finite elements of the gradient the optimizer used"),
    ),
)  # fmt: skip

WEIGHT = Stream(
    "weight",
    covers_modules=False,
    quantities=(
        *_statistics_of("weight", _WEIGHT, "weight"),
        _extra("weight_drift", "weight", "1", _WEIGHT, Merge.DERIVED,
               "distance from the first measured weight over that weight's norm, from sketches"),
        _extra("weight_cosine_to_start", "weight", "1", _WEIGHT, Merge.DERIVED,
               "cosine with the first measured weight, from sketches"),
        _extra("weight_row_spread", "weight", "share", _WEIGHT, Merge.DERIVED,
               "norm of the rows minus their mean row, over the weight's norm; 0 when all rows are equal. Of an "
               "embedding: the same of its columns"),
        _extra("weight_rows_unused", "weight", "share", _WEIGHT, Merge.DERIVED,
               "embeddings: share of rows that have had no gradient in any step looked at since the start"),
    ),
)  # fmt: skip

UPDATE = Stream(
    "update",
    covers_modules=False,
    quantities=(
        _extra("update_norm", "update", "weight", _UPDATE, Merge.DERIVED,
               "L2 norm of the update, from sketches; exactly 0 when nothing moved"),
        _extra("update_ratio", "update", "1", _UPDATE, Merge.DERIVED,
               "update norm over the norm of the weight before the step"),
        _extra("update_cosine", "update", "1", _UPDATE, Merge.DERIVED,
               "cosine with the previous measured update, from sketches"),
        _extra("update_gradient_cosine", "update", "1", _UPDATE, Merge.DERIVED,
               "cosine of the update with the negative gradient, from sketches"),
    ),
)  # fmt: skip

ACTIVATION = Stream(
    "activation",
    covers_modules=True,
    quantities=(
        _extra("activation_calls", "activation", "count", _ACTIVATION, Merge.SUM,
               "times the module ran since the previous step"),
        _extra("activation_mean", "activation", "activation", _ACTIVATION, Merge.DERIVED, "mean of the finite outputs"),
        _extra("activation_std", "activation", "activation", _ACTIVATION, Merge.DERIVED,
               "population standard deviation of the finite outputs"),
        _extra("activation_max_abs", "activation", "activation", _ACTIVATION, Merge.MAX,
               "largest absolute finite output"),
        _extra("activation_zero_fraction", "activation", "share", _ACTIVATION, Merge.DERIVED,
               "share of outputs exactly zero"),
        _extra("activation_nonfinite_count", "activation", "count", _ACTIVATION, Merge.SUM,
               "number of NaN and infinite outputs"),
        _extra("activation_dead_fraction", "activation", "share", _ACTIVATION, Merge.DERIVED,
               "share of units (channels or features) that were never non-zero in the window of recent frames, or that "
               "fell silent in its last four frames; where a ReLU is applied to the output as a function, behind that"),
        _extra("activation_saturated_fraction", "activation", "share", _ACTIVATION, Merge.DERIVED,
               "share of outputs at the flat ends of a bounded activation function, or of one that is applied to the "
               "output without a module of its own; other modules have none"),
        _extra("output_gradient_norm", "activation", "gradient", _OUTPUT_GRADIENT, Merge.DERIVED,
               "L2 norm of the gradient at the module's output, unscaled"),
        _extra("output_gradient_nonfinite_count", "activation", "count", _OUTPUT_GRADIENT, Merge.SUM,
               "number of NaN and infinite elements in the gradient at the module's output"),
        _extra("activation_training", "activation", "flag", _MODULE, Merge.MIN,
               "1 when it ran in training mode, 0 when it ran in evaluation mode"),
        _extra("activation_sample_spread", "activation", "share", _ACTIVATION, Merge.DERIVED,
               "share of the outputs' variance that lies between samples; about 0 when all samples give the same"),
        _extra("attention_logit_max", "activation", "1", _MODULE, Merge.MAX,
               "largest absolute attention logit that no mask hides"),
        _extra("attention_entropy", "activation", "share", _MODULE, Merge.DERIVED,
               "entropy of the attention weights over the largest possible, mean over heads and rows; masks respected"),
        _extra("router_load_max", "activation", "share", _MODULE, Merge.DERIVED,
               "share of rows whose largest gate is the busiest one, where a softmax over few outputs gates others; "
               "where several are chosen to a row, share of rows that choose the same ones, if that is more"),
        _extra("router_outputs", "activation", "count", _MODULE, Merge.MAX, "number of outputs of such a gate"),
        _extra("norm_values", "activation", "count", _MODULE, Merge.MIN,
               "values from which each statistic of a normalisation was computed"),
        _extra("norm_eps", "activation", "1", _MODULE, Merge.MAX, "eps of a normalisation"),
        _extra("norm_momentum", "activation", "1", _MODULE, Merge.MAX, "momentum of a batch normalisation's averages"),
        _extra("dropout_rate", "activation", "share", _MODULE, Merge.MAX, "rate of a dropout"),
        _extra("attention_state", "activation", "state", _MODULE, Merge.MAX,
               "0 attention as it should be, 1 its weights sum to one over another dimension than that of the keys, "
               "2 all keys that no mask hides hold one and the same token, 3 its logits are plain products of queries "
               "and keys, not divided by anything, and large, 4 places see the token that they are asked for"),
        _extra("padding_inside", "activation", "share", _MODULE, Merge.MAX,
               "embeddings: share of tokens that have the padding index and stand where a real token would"),
        _extra("norm_average", "activation", "activation", _MODULE, Merge.DERIVED,
               "norm of the running means of a batch normalisation, before its first forward pass of the step"),
        _extra("latent_nats", "activation", "nats", _MODULE, Merge.DERIVED,
               "divergence, per sample, of a code with this mean from a standard normal prior, if the loss holds it"),
        _extra("norm_samples", "activation", "count", _MODULE, Merge.MIN,
               "samples from which each statistic of a batch normalisation was computed, of its smallest batch"),
        _extra("recomputed_apart", "activation", "flag", _MODULE, Merge.MAX,
               "of a module that draws random numbers and ran once more in the backward pass: 1 when it drew others"),
    ),
)  # fmt: skip

OPTIMIZER = Stream(
    "optimizer",
    covers_modules=False,
    quantities=(
        _extra("optimizer_rate", "optimizer", "1", _OPTIMIZER, Merge.MAX, "learning rate of the parameter's group"),
        _extra("optimizer_weight_decay", "optimizer", "1", _OPTIMIZER, Merge.MAX, "weight decay of the group"),
        _extra("optimizer_momentum", "optimizer", "1", _OPTIMIZER, Merge.MAX, "momentum, or Adam's first beta"),
        _extra("optimizer_step_count", "optimizer", "count", _OPTIMIZER, Merge.MAX,
               "steps the optimizer itself has counted for the parameter"),
        _extra("optimizer_rebuilt", "optimizer", "flag", _OPTIMIZER, Merge.MAX,
               "1 when another optimizer object held the parameter at its previous step"),
        _extra("optimizer_eps_ratio", "optimizer", "1", _OPTIMIZER, Merge.DERIVED,
               "median of the root of the corrected second moment, over eps"),
        _extra("optimizer_gradient_rms", "optimizer", "1", _OPTIMIZER, Merge.DERIVED,
               "root of the mean of the squared gradient over the corrected second moment"),
        _extra("optimizer_momentum_cosine", "optimizer", "1", _OPTIMIZER, Merge.DERIVED,
               "cosine of the momentum buffer with the gradient of the step"),
    ),
)  # fmt: skip

SKETCH = Stream(
    "sketch",
    covers_modules=False,
    quantities=(
        _extra("gradient_sketch", "sketch", "gradient", _GRADIENT, Merge.SUM,
               "folded sketch of the gradient", STORED_SKETCH_WIDTH),
        _extra("weight_sketch", "sketch", "weight", _WEIGHT, Merge.SUM,
               "folded sketch of the weight", STORED_SKETCH_WIDTH),
    ),
)  # fmt: skip

_SPREAD = (
    "absolute values at histogram frames: the exponent of the lowest bucket, then the share of the non-zero finite "
    "elements in each power of two from there up; the lowest bucket holds smaller ones, too"
)

HISTOGRAM = Stream(
    "histogram",
    covers_modules=False,
    quantities=(
        _extra("gradient_histogram", "histogram", "share", _GRADIENT, Merge.DERIVED, _SPREAD, STORED_HISTOGRAM_WIDTH),
        _extra("weight_histogram", "histogram", "share", _WEIGHT, Merge.DERIVED, _SPREAD, STORED_HISTOGRAM_WIDTH),
    ),
)

_REPLICAS = "replicas of the parameter on different ranks, after the step"

RANK = Stream(
    "rank",
    covers_modules=False,
    quantities=(
        _extra("rank_weight_distance", "rank", "1", _REPLICAS, Merge.MAX,
               "largest distance of a replica's weight from the first rank's, over its norm, from sketches"),
        _extra("rank_gradient_distance", "rank", "1", _REPLICAS, Merge.MAX,
               "the same of the gradients that the optimizers used"),
        _extra("rank_farthest", "rank", "index", _REPLICAS, Merge.MAX, "the rank whose replica is farthest away"),
    ),
)  # fmt: skip

STREAMS: dict[str, Stream] = {
    s.name: s for s in (GRADIENT, WEIGHT, UPDATE, ACTIVATION, OPTIMIZER, RANK, SKETCH, HISTOGRAM)
}

QUANTITIES: dict[str, Quantity] = {q.name: q for s in STREAMS.values() for q in s.quantities}


class GradientState:
    """Values of the quantity `gradient_state`."""

    PRESENT = 0.0
    NONE = 1.0
    FROZEN = 2.0


class AttentionState:
    """Values of the quantity `attention_state`."""

    FINE = 0.0
    NORMALISED_ELSEWHERE = 1.0
    SEES_PADDING = 2.0
    UNSCALED = 3.0
    SEES_ANSWERS = 4.0


class LossKind:
    """Values of the scalar `loss_kind`: which loss function was differentiated."""

    UNKNOWN = 0.0
    CROSS_ENTROPY = 1.0  # from logits
    NEGATIVE_LOG_LIKELIHOOD = 2.0  # of log-probabilities that were given
    MEAN_SQUARE = 3.0
    ABSOLUTE = 4.0  # L1, smooth L1, Huber
    BINARY_OF_PROBABILITIES = 5.0
    BINARY_OF_LOGITS = 6.0
    DIVERGENCE = 7.0  # Kullback-Leibler
    ALIGNMENT = 8.0  # connectionist temporal classification, of log-probabilities that were given


class LossReduction:
    """Values of the scalar `loss_reduction`: what became of the loss of each row."""

    NONE = 0.0
    MEAN = 1.0
    SUM = 2.0


class Floor:
    """Values of the scalar `loss_without_floor`: what makes a loss fall for ever."""

    NONE = 0.0
    EXPONENTIAL = 1.0  # a value and its exponential fall together
    REWARDS_ERRORS = 2.0  # squared errors inside of a density have a minus sign
    REWARDS_WEIGHTS = 3.0  # the squares of weights have one
    REWARDS_NORMALISER = 5.0  # the squared logarithm of a softmax's normaliser has a minus sign
    LOWERS_LIKELIHOOD = 6.0  # log-probabilities picked by targets have a plus sign
    PUNISHES_OVERLAP = 4.0  # the overlap with a mask (Dice, intersection over union) stands in it with a plus sign


class Repeat:
    """Values of the scalar `targets_repeated`: the targets of a batch beside those looked at before."""

    NEW = 0.0
    SAME_TENSOR = 0.5
    SAME_VALUES = 1.0  # in another place

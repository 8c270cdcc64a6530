"""Every number Undertow records per layer: its name, its unit, what it is of, how parts merge.

Quantities that are taken at the same moment are stored together in one *stream*; a stream covers
either the parameter layers or the module layers of a run.
"""

from dataclasses import dataclass, replace
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
    covers_connections: bool = False  # of the graph, instead of layers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(quantity.name for quantity in self.quantities)


SUM, MIN, MAX, DERIVED = Merge

# Statistics of one tensor, in the order `measure.statistics` computes them.
# (suffix, unit relative to the tensor's own unit "u", merge, meaning)
STATISTICS: tuple[tuple[str, str, Merge, str], ...] = (
    ("norm", "u", DERIVED, "L2 norm; non-finite when any element is"),
    ("rms", "u", DERIVED, "norm divided by the square root of the number of elements"),
    ("mean", "u", DERIVED, "mean of the finite elements"),
    ("mean_abs", "u", DERIVED, "mean of the absolute finite elements"),
    ("std", "u", DERIVED, "population standard deviation of the finite elements"),
    ("min", "u", MIN, "smallest finite element"),
    ("max", "u", MAX, "largest finite element"),
    ("max_abs", "u", MAX, "largest absolute finite element"),
    ("skewness", "1", DERIVED, "third standardised moment of the finite elements"),
    ("kurtosis", "1", DERIVED, "fourth standardised moment of the finite elements, minus 3"),
    ("zero_fraction", "share", DERIVED, "share of elements exactly zero"),
    ("nonfinite_count", "count", SUM, "number of NaN and infinite elements"),
    ("abs_p05", "u", DERIVED, "5th percentile of absolute values, to a power of two"),
    ("abs_p50", "u", DERIVED, "median of absolute values, to a power of two"),
    ("abs_p95", "u", DERIVED, "95th percentile of absolute values, to a power of two"),
    ("fp16_underflow", "share", DERIVED, "share of non-zero elements that fp16 would flush to 0"),
    ("fp16_overflow", "share", DERIVED, "share of elements beyond the fp16 range"),
    ("bf16_underflow", "share", DERIVED, "share of non-zero elements that bf16 would flush to 0"),
    ("bf16_overflow", "share", DERIVED, "share of elements beyond the bf16 range"),
    ("fp8_underflow", "share", DERIVED, "share of non-zero elements that fp8 e4m3 would flush to 0"),
    ("fp8_overflow", "share", DERIVED, "share of elements beyond the fp8 e4m3 range"),
)

STATISTIC_NAMES: tuple[str, ...] = tuple(row[0] for row in STATISTICS)

STORED_SKETCH_WIDTH = 64
STORED_HISTOGRAM_WIDTH = 32


_GRADIENT = "gradient before clipping (unscaled, accumulated, reduced)"
_STEPPED = "gradient as the optimizer stepped with it"
_WEIGHT = "weight after the step"
_UPDATE = "change of the weight in this step"
_ACTIVATION = "output of the module in this step's forward passes"
_OUTPUT_GRADIENT = "gradient of the loss at the module's output"
_MODULE = "module in this step's forward passes"
_OPTIMIZER = "state of the optimizer that holds the parameter, after the step"
_REPLICAS = "replicas of the parameter on different ranks, after the step"
_CONNECTION = "gradient at the output of the connection's first end, and the part that its other end sends back"
_SPREAD = (
    "absolute values at histogram frames: the exponent of the lowest bucket, then the share of the non-zero finite "
    "elements in each power of two from there up; the lowest bucket holds smaller ones, too"
)


def _stream(
    name: str,
    rows: tuple[tuple[str, str, str, Merge, str], ...],
    statistics_of: str = "",
    *,
    covers_modules: bool = False,
    width: int = 1,
) -> Stream:
    """Of `rows` (name, unit, what it is of, merge, meaning), after all statistics of a tensor if there is one."""
    every = [(f"{name}_{suffix}", name if unit == "u" else unit, statistics_of, merge, what)
             for suffix, unit, merge, what in STATISTICS if statistics_of]  # fmt: skip
    quantities = (Quantity(own, name, unit, of, merge, what, width) for own, unit, of, merge, what in (*every, *rows))
    return Stream(name, covers_modules, tuple(quantities))


GRADIENT = _stream("gradient", (
    ("gradient_cosine", "1", _GRADIENT, DERIVED,
     "cosine with the gradient of the previous measured step, from sketches"),
    ("gradient_noise_scale", "1", _GRADIENT, DERIVED,
     "trace of the micro-batch covariance over the squared mean gradient; needs accumulation"),
    ("gradient_state", "state", _GRADIENT, MAX, "0 present, 1 None, 2 frozen (requires_grad is False)"),
    ("gradient_carried", "flag", _GRADIENT, MAX,
     "1 when the gradient of the optimizer's previous step was never cleared before this one"),
    ("gradient_optimizer", "index", _GRADIENT, MAX, "index of the optimizer that holds the parameter, -1 for none"),
    ("stepped_gradient_norm", "gradient", _STEPPED, DERIVED, "L2 norm of the gradient the optimizer used"),
    ("stepped_gradient_max_abs", "gradient", _STEPPED, MAX,
     "largest absolute finite element of the gradient the optimizer used"),
    ("stepped_gradient_nonfinite_count", "count", _STEPPED, SUM,
     "non-finite elements of the gradient the optimizer used"),
), _GRADIENT)  # fmt: skip

WEIGHT = _stream("weight", (
    ("weight_drift", "1", _WEIGHT, DERIVED,
     "distance from the first measured weight over that weight's norm, from sketches"),
    ("weight_cosine_to_start", "1", _WEIGHT, DERIVED, "cosine with the first measured weight, from sketches"),
    ("weight_row_spread", "share", _WEIGHT, DERIVED,
     "norm of the rows minus their mean row, over the weight's norm; 0 when all rows are equal. Of an embedding: "
     "the same of its columns"),
    ("weight_rows_unused", "share", _WEIGHT, DERIVED,
     "embeddings: share of rows that have had no gradient in any step looked at since the start"),
), _WEIGHT)  # fmt: skip

UPDATE = _stream("update", (
    ("update_norm", "weight", _UPDATE, DERIVED, "L2 norm of the update, from sketches; exactly 0 when nothing moved"),
    ("update_ratio", "1", _UPDATE, DERIVED, "update norm over the norm of the weight before the step"),
    ("update_cosine", "1", _UPDATE, DERIVED, "cosine with the previous measured update, from sketches"),
    ("update_gradient_cosine", "1", _UPDATE, DERIVED, "cosine of the update with the negative gradient, from sketches"),
))  # fmt: skip

ACTIVATION = _stream("activation", (
    ("activation_calls", "count", _ACTIVATION, SUM, "times the module ran since the previous step"),
    ("activation_mean", "activation", _ACTIVATION, DERIVED, "mean of the finite outputs"),
    ("activation_std", "activation", _ACTIVATION, DERIVED, "population standard deviation of the finite outputs"),
    ("activation_max_abs", "activation", _ACTIVATION, MAX, "largest absolute finite output"),
    ("activation_zero_fraction", "share", _ACTIVATION, DERIVED, "share of outputs exactly zero"),
    ("activation_nonfinite_count", "count", _ACTIVATION, SUM, "number of NaN and infinite outputs"),
    ("activation_dead_fraction", "share", _ACTIVATION, DERIVED,
     "share of units (channels or features) that were never non-zero in the window of recent frames, or that "
     "fell silent in its last four frames; where a ReLU is applied to the output as a function, behind that"),
    ("activation_saturated_fraction", "share", _ACTIVATION, DERIVED,
     "share of outputs at the flat ends of a bounded activation function, or of one that is applied to the "
     "output without a module of its own; other modules have none"),
    ("output_gradient_norm", "gradient", _OUTPUT_GRADIENT, DERIVED,
     "L2 norm of the gradient at the module's output, unscaled"),
    ("output_gradient_nonfinite_count", "count", _OUTPUT_GRADIENT, SUM,
     "number of NaN and infinite elements in the gradient at the module's output"),
    ("activation_training", "flag", _MODULE, MIN, "1 when it ran in training mode, 0 when it ran in evaluation mode"),
    ("activation_sample_spread", "share", _ACTIVATION, DERIVED,
     "share of the outputs' variance that lies between samples; about 0 when all samples give the same"),
    ("attention_logit_max", "1", _MODULE, MAX, "largest absolute attention logit that no mask hides"),
    ("attention_entropy", "share", _MODULE, DERIVED,
     "entropy of the attention weights over the largest possible, mean over heads and rows; masks respected"),
    ("router_load_max", "share", _MODULE, DERIVED,
     "share of rows whose largest gate is the busiest one, where a softmax over few outputs gates others; where "
     "several are chosen to a row, share of rows that choose the same ones, if that is more"),
    ("router_outputs", "count", _MODULE, MAX, "number of outputs of such a gate"),
    ("norm_values", "count", _MODULE, MIN, "values from which each statistic of a normalisation was computed"),
    ("norm_eps", "1", _MODULE, MAX, "eps of a normalisation"),
    ("norm_momentum", "1", _MODULE, MAX, "momentum of a batch normalisation's averages"),
    ("dropout_rate", "share", _MODULE, MAX, "rate of a dropout"),
    ("attention_state", "state", _MODULE, MAX,
     "0 attention as it should be, 1 its weights sum to one over another dimension than that of the keys, 2 all "
     "keys that no mask hides hold one and the same token, 3 its logits are plain products of queries and keys, "
     "not divided by anything, and large, 4 places see the token that they are asked for"),
    ("padding_inside", "share", _MODULE, MAX,
     "embeddings: share of tokens that have the padding index and stand where a real token would"),
    ("norm_average", "activation", _MODULE, DERIVED,
     "norm of the running means of a batch normalisation, before its first forward pass of the step"),
    ("latent_nats", "nats", _MODULE, DERIVED,
     "divergence, per sample, of a code with this mean from a standard normal prior, if the loss holds it"),
    ("norm_samples", "count", _MODULE, MIN,
     "samples from which each statistic of a batch normalisation was computed, of its smallest batch"),
    ("recomputed_apart", "flag", _MODULE, MAX,
     "of a module that draws random numbers and ran once more in the backward pass: 1 when it drew others"),
), covers_modules=True)  # fmt: skip
ACTIVATION_ROUND = "activation_round"  # a scalar: share of all modules that a round of samples has reached

OPTIMIZER = _stream("optimizer", (
    ("optimizer_rate", "1", _OPTIMIZER, MAX, "learning rate of the parameter's group"),
    ("optimizer_weight_decay", "1", _OPTIMIZER, MAX, "weight decay of the group"),
    ("optimizer_momentum", "1", _OPTIMIZER, MAX, "momentum, or Adam's first beta"),
    ("optimizer_step_count", "count", _OPTIMIZER, MAX, "steps the optimizer itself has counted for the parameter"),
    ("optimizer_rebuilt", "flag", _OPTIMIZER, MAX,
     "1 when another optimizer object held the parameter at its previous step"),
    ("optimizer_eps_ratio", "1", _OPTIMIZER, DERIVED, "median of the root of the corrected second moment, over eps"),
    ("optimizer_gradient_rms", "1", _OPTIMIZER, DERIVED,
     "root of the mean of the squared gradient over the corrected second moment"),
    ("optimizer_momentum_cosine", "1", _OPTIMIZER, DERIVED,
     "cosine of the momentum buffer with the gradient of the step"),
))  # fmt: skip

SKETCH = _stream("sketch", (
    ("gradient_sketch", "gradient", _GRADIENT, SUM, "folded sketch of the gradient"),
    ("weight_sketch", "weight", _WEIGHT, SUM, "folded sketch of the weight"),
), width=STORED_SKETCH_WIDTH)  # fmt: skip

HISTOGRAM = _stream("histogram", (
    ("gradient_histogram", "share", _GRADIENT, DERIVED, _SPREAD),
    ("weight_histogram", "share", _WEIGHT, DERIVED, _SPREAD),
), width=STORED_HISTOGRAM_WIDTH)  # fmt: skip

RANK = _stream("rank", (
    ("rank_weight_distance", "1", _REPLICAS, MAX,
     "largest distance of a replica's weight from the first rank's, over its norm, from sketches"),
    ("rank_gradient_distance", "1", _REPLICAS, MAX, "the same of the gradients that the optimizers used"),
    ("rank_farthest", "index", _REPLICAS, MAX, "the rank whose replica is farthest away"),
))  # fmt: skip

FLOW = replace(_stream("flow", (
    ("flow_share", "share", _CONNECTION, DERIVED,
     "scalar product of the part with the whole, over the square of the whole: of all parts together 1, negative for "
     "one that works against the others"),
    ("flow_size", "1", _CONNECTION, DERIVED, "norm of the part over the norm of the whole"),
)), covers_connections=True)  # fmt: skip

STREAMS: dict[str, Stream] = {
    s.name: s for s in (GRADIENT, WEIGHT, UPDATE, ACTIVATION, OPTIMIZER, RANK, SKETCH, HISTOGRAM, FLOW)
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

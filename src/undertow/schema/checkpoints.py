"""What is known of the weights in a checkpoint, without a model. docs/components/weights.md defines every number.

A value that could not be computed is None; the `missing` of its record says why, by field name.
"""

from dataclasses import dataclass, field

from undertow.schema.severity import Health, Severity


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one tensor, or of many pooled. All but the counts are over the finite elements."""

    count: int
    nan_count: int = 0
    infinite_count: int = 0
    zero_count: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    skewness: float | None = None
    kurtosis: float | None = None  # excess: 0 for a normal distribution
    norm: float | None = None
    entropy_bits: float | None = None  # of 64 equal bins between minimum and maximum; None when pooled
    undivided_count: int = 0  # NaN or infinite, which a recorded run does not tell apart

    @property
    def finite_count(self) -> int:
        return self.count - self.nonfinite_count

    @property
    def nonfinite_count(self) -> int:
        return self.nan_count + self.infinite_count + self.undivided_count

    @property
    def zero_fraction(self) -> float:
        return self.zero_count / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Extreme:
    """One element far from the mean; `deviations` counts in units of the scale of `Outliers`."""

    index: int
    position: tuple[int, ...]
    value: float
    deviations: float


@dataclass(frozen=True, slots=True)
class OutlierRow:
    """An output unit whose incoming weights are far larger than its neighbours'."""

    row: int
    norm: float
    times_median: float


@dataclass(frozen=True, slots=True)
class Outliers:
    """How many elements lie beyond `limit` scales from the mean, and how many of a normal distribution would."""

    scale: float
    scale_from: str  # "median absolute deviation" or "standard deviation"
    limit: float
    count: int
    expected: float
    largest: tuple[Extreme, ...] = ()
    rows: tuple[OutlierRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Units:
    """Rows are output units (or entries of an embedding), columns are inputs. Dead: nothing but (almost) zeros."""

    rows: int
    columns: int
    dead_rows: int
    dead_columns: int
    first_dead_rows: tuple[int, ...] = ()
    first_dead_columns: tuple[int, ...] = ()
    sparsity: str = "none"  # "none", "scattered", "2:4", "rows", "columns", "all zero"


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Singular values of the tensor as a matrix (first dimension × all others)."""

    method: str  # "exact" or "randomised"
    values_known: int
    values_total: int
    spectral_norm: float
    stable_rank: float
    condition: float | None = None
    tail_exponent: float | None = None
    tail_values: int | None = None
    tail_start: float | None = None
    tail_distance: float | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Initialisation:
    """Size against fan-in, and the initialisation that the values cannot be told from, if there is one."""

    fan_in: int | None
    scale: float | None  # root mean square × √fan_in
    resembles: str | None = None
    probability: float | None = None  # of a sample of that initialisation looking at least as odd as this one
    missing: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class TensorWeights:
    path: str
    kind: str  # a LayerKind, or "buffer"
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    moments: Moments
    outliers: Outliers | None = None
    units: Units | None = None
    spectrum: Spectrum | None = None
    initialisation: Initialisation | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Tensors with the same bytes. `shared`: they are one tensor under several names, which is meant."""

    paths: tuple[str, ...]
    shared: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class WeightIssue:
    code: str
    name: str
    severity: Severity
    layers: tuple[str, ...]
    summary: str
    value: float | None = None
    expected: float | None = None


@dataclass(frozen=True, slots=True)
class TensorDrift:
    path: str
    kind: str
    relative: float | None = None  # ‖now − then‖ / ‖then‖
    cosine: float | None = None
    difference_norm: float | None = None
    largest_change: float | None = None
    changed_fraction: float | None = None
    severity: Severity = Severity.INFO
    missing: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Drift:
    """From an earlier checkpoint to this one, per tensor and over all of them as one long vector."""

    against: str
    relative: float | None
    cosine: float | None
    median_relative: float | None
    severity: Severity = Severity.INFO
    tensors: tuple[TensorDrift, ...] = ()
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class WeightReport:
    """Of a checkpoint, a module, a mapping, or a recorded run. No weights at all: no health."""

    undertow: str
    source: str
    format: str
    health: Health | None
    parameter_count: int
    bytes: int
    overall: Moments
    kinds: dict[str, Moments]
    issues: tuple[WeightIssue, ...]
    tensors: tuple[TensorWeights, ...]
    duplicates: tuple[Duplicates, ...] = ()
    drift: Drift | None = None
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

"""DAT001: inputs that are not scaled."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Stage
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.remedies import STANDARDISE_THE_INPUTS
from undertow.schema import Evidence, Severity

_TAKE_NUMBERS = ("Linear", "Conv1d", "Conv2d", "Conv3d")


class UnscaledInputs(Condition):
    """The numbers that enter the model are far from the scale it is made for.

    What it sees: Mean, deviation and largest value of the data that enter the first operation with parameters, at two
        sampled steps in a row: a root mean square above 25, a mean far larger than the deviation, or nothing above
        0.005. Of data that enter elsewhere, as a time or a condition does, the size follows from the outputs of the
        layer that takes them and its weights: above 100. Models that normalise their input, or right behind their first
        layer with no way around it, are not judged, nor are data that were fine at five sampled steps: when those turn
        odd, it is a matter of single batches (DAT002).
    Why it is bad: Initialisation, learning rates and activation functions all expect inputs of about one. Large inputs
        saturate or kill the units of the first layer and make its gradient dwarf all others; a large common offset
        leaves a long, narrow valley to descend; tiny inputs drown in the biases.
    When it is wrong: Standardised inputs, pixels between 0 and 1, one-hot rows, waveforms and log-spectra lie well
        within the limits. A first layer that is initialised for raw inputs would be healthy, and is very rare.
    References: LeCun et al., "Efficient BackProp", 1998, section 4.3.
    """

    code, variant, formerly = "DAT001", "unscaled-inputs", "inputs"
    places = ("data",)
    stage, is_standing = Stage.DATA, True
    needs = frozenset({"input_std"})
    meaning = "The first layer is driven far out of the range in which it can learn"
    remedies = (STANDARDISE_THE_INPUTS,)

    large = Limit(25.0, "root mean square; standardised, 0…1 and one-hot inputs: 0.01 to 3, log-mel spectra up to 10")
    offset = Limit(20.0, "deviations between the mean and zero, where the mean is large as well")
    large_mean = Limit(3.0, "below it an offset does no harm")
    large_beside = Limit(100.0, "the same of data that enter elsewhere, of which only what a layer makes is known")
    small = Limit(5e-3, "largest absolute value: beside it, biases decide alone")
    patience = Limit.chance(2, "sampled steps in a row: one may be a bad batch")
    usual_for = Limit.chance(5, "sampled steps of usual inputs: what was fine for so long is scaled")

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._first = NONE
        self._protected = True
        self._odd = 0  # sampled steps in a row
        self._usual = 0  # sampled steps
        self._since = 0

    def observe(self, view: FrameView) -> Judgement | None:
        deviation, mean, largest = (view.scalar(f"input_{name}") for name in ("std", "mean", "max_abs"))
        if math.isnan(deviation):
            return None
        if view.layout is not self._layout:
            self._look(view.layout)
        side, size = self._largest_beside(view)
        if self._protected and side == NONE:
            return None
        if math.hypot(mean, deviation) > self.large and not self._protected:
            fault = "large"
        elif abs(mean) > max(self.offset * deviation, self.large_mean) and not self._protected:
            fault = "offset"
        elif 0 < largest < self.small and not self._protected:
            fault = "small"
        elif size > self.large_beside:
            fault = "beside"
        else:
            self._odd = 0
            self._usual += 1
            return self.end()
        if self._usual >= self.usual_for:  # something else has happened
            return None
        if self._odd == 0:
            self._since = view.step
        self._odd += 1
        if self._odd < self.patience:
            return None
        if fault == "beside":
            return self.hold(fault, lambda: self._describe_beside(view, side, size))
        return self.hold(fault, lambda: self._describe(view, fault, mean, deviation, largest))

    def _largest_beside(self, view: FrameView) -> tuple[int, float]:
        """Of the layers that other data enter: the one with the largest, and their size as its outputs tell it."""
        structure, found = structure_of(view.layout), (NONE, math.nan)
        norms, outputs = view.all_layers("weight_norm"), view.all_layers("activation_std")
        calls = view.all_layers("activation_calls")  # what runs again may be given what it has made itself
        for module in view.layout.derived(_entered):
            weight = int(structure.matrix[module])
            size = float(outputs[module] / norms[weight]) * math.sqrt(view.layout.layers[weight].shape[0])
            if module != self._first and calls[module] == 1 and size > (0.0 if math.isnan(found[1]) else found[1]):
                found = module, size
        return found

    def _look(self, layout: LayerIndex) -> None:
        """The layer that the data enter; embeddings take indices, and a normalisation takes any scale."""
        self._layout = layout
        structure = structure_of(layout)
        owners = [i for i in structure.sequence if structure.matrix[i] != NONE or structure.is_norm[i]]
        self._first = owners[0] if owners else NONE
        normalised = structure.is_normalised(self._first) and not _goes_around(layout, self._first)
        self._protected = self._first == NONE or bool(structure.is_norm[self._first]) or normalised

    def _describe_beside(self, view: FrameView, module: int, size: float) -> Judgement:
        path = view.layout.path(module)
        how = "root mean square of what enters, as its outputs and its weights tell it"
        evidence = (
            Evidence("input_std", path, size, 1.0, how),
            Evidence("activation_std", path, float(view.all_layers("activation_std")[module]), 1.0, "of its outputs"),
        )
        summary = f"What enters {path} is far too large (about {size:.2g}; about 1 is usual): it is not scaled."
        return Judgement(Severity.SEVERE, (module,), self._since, 0.85, summary, evidence)

    def _describe(self, view: FrameView, fault: str, mean: float, deviation: float, largest: float) -> Judgement:
        first = view.layout.path(self._first)
        words = {
            "large": f"far too large (mean {mean:.3g}, deviation {deviation:.3g}; about 0 and 1 are usual)",
            "offset": f"far from zero (mean {mean:.3g}, deviation {deviation:.3g}; about 0 and 1 are usual)",
            "small": f"tiny (none above {largest:.2g}; about 1 is usual)",
        }[fault]
        evidence = [
            Evidence("input_std", first, deviation, 1.0, "deviation of the data that enter the model"),
            Evidence("input_mean", first, mean, 0.0, "mean of the data that enter the model"),
        ]
        output = float(view.all_layers("activation_std")[self._first])
        if math.isfinite(output):
            evidence.append(Evidence("activation_std", first, output, 1.0, "deviation of the first layer's output"))
        severity = Severity.MODERATE if fault == "small" else Severity.SEVERE
        summary = f"The inputs of {first} are {words}: they are not scaled."
        return Judgement(severity, (self._first,), self._since, 0.93, summary, tuple(evidence))


def _entered(layout: LayerIndex) -> list[int]:
    """Plain matrices that nothing differentiable comes before, and behind which no normalisation follows at once."""
    structure, behind = structure_of(layout), {target for _, target in layout.graph.edges}
    modules = [layout.layers.get(node.path) for node in layout.graph.nodes if node.id not in behind]
    chosen = {one.id for one in modules if one is not None and one.module_type in _TAKE_NUMBERS}
    return [i for i in sorted(chosen) if structure.matrix[i] != NONE and not structure.is_normalised(i)]


def _goes_around(layout: LayerIndex, first: int) -> bool:
    """Does what the first layer puts out also go elsewhere than into a normalisation, as in a residual stream?"""
    path_of = {node.id: node.path for node in layout.graph.nodes}
    behind = {target for source, target in layout.graph.edges if path_of.get(source) == layout.path(first)}
    return any(not _is_norm(layout, path_of.get(node, "")) for node in behind)


def _is_norm(layout: LayerIndex, path: str) -> bool:
    layer = layout.layers.get(path)
    return layer is not None and bool(structure_of(layout).is_norm[layer.id])

"""Which codes are as right as the best one, and why.

A fault may be told in more than one true way: "the learning rate is too high" and "the updates are too large" send the
user to the same line. Only such pairs are here. A consequence that sends the user elsewhere is not: dead units after a
high learning rate are found by looking at the rate, not at the units.
"""

from __future__ import annotations

# (best code, accepted code) → why the second is no wrong answer
EQUIVALENT: dict[tuple[str, str], str] = {
    ("OPT007", "UPD001"): "the rate is too high exactly when it makes the updates too large",
    ("OPT007", "UPD002"): "the rate is too low exactly when it makes the updates too small",
    (
        "OPT007",
        "OPT001",
    ): "a rate that rises a hundredfold while training is seen as a loss that diverges from there on",
    ("OPT007", "OPT003"): "a rate that is too high for a while is seen as a spike of the loss at that time",
    ("OPT007", "GRD009"): "a discriminator that learns fifty times faster is one loss that drowns the other",
    ("OPT007", "GRD001"): "a discriminator that has won leaves its generator no gradient",
    ("UPD002", "OPT007"): "one group's rate is far too low: its updates are too small",
    ("UPD002", "UPD003"): "a group whose updates round to nothing is never updated",
    ("UPD001", "OPT007"): "a scale that multiplies every update is a learning rate",
    ("UPD001", "OPT001"): "updates that are too large from the first step on show as a diverging loss",
    ("UPD001", "GRD002"): "a scale that multiplies a branch multiplies its gradients, too",
    ("UPD001", "ACT002"): "an adapter scaled a hundredfold holds the units right behind it at their limit",
    ("LSS001", "LSS003"): "logits taken for log-probabilities give a loss below its range",
    ("LSS004", "OPT007"): "sixteen losses added instead of averaged are a learning rate sixteen times too high",
    ("LSS004", "UPD001"): "sixteen losses added instead of averaged are updates sixteen times too large",
    ("GRD010", "UPD002"): "gradients clipped to nothing give updates that are too small",
    ("GRD010", "OPT007"): "a clip bound that is always reached acts as a learning rate far too low",
    ("OPT008", "UPD002"): "an eps far above the gradients is seen as updates that are too small",
    ("OPT008", "WGT005"): "weight decay that outweighs the gradient is seen as weights that shrink to zero",
    ("OPT008", "OPT004"): "momentum of 0.999 is seen as a loss that swings",
    ("OPT008", "OPT007"): "momentum of 0.999 multiplies the learning rate by a thousand",
    ("OPT008", "OPT003"): "a second moment that lags behind is seen as a spike of the loss",
    ("OPT008", "DAT002"): "the data that became larger are what the second moment cannot follow",
    ("OPT008", "UPD001"): "a second moment that lags behind, or huge momentum, is seen as updates that are too large",
    ("WGT003", "GRD001"): "weights that are too small by depth are gradients that vanish by depth",
    ("WGT003", "GRD002"): "weights that are too large by depth are gradients that explode by depth",
    ("WGT002", "GRD004"): "layers that start at zero pass exactly zero gradient to each other",
    ("GRD001", "WGT003"): "a forward signal that shrinks by depth and a gradient that does are one and the same",
    ("GRD002", "WGT003"): "a recurrent weight with a radius far above one is initialised too large",
    ("GRD002", "NUM001"): "gradients that explode within a step or two are infinite before they can be seen to grow",
    ("GRD002", "NUM002"): "gradients that explode within a step or two make the very next loss infinite",
    ("ACT001", "GRD004"): "a layer whose units are all dead passes exactly zero gradient",
    ("ACT005", "GRD004"): "an expert that is never chosen has exactly zero gradient",
    ("ACT005", "GRD003"): "an expert that is never called has no gradient",
    ("DAT001", "ACT002"): "inputs fifty times too large are seen as saturated units of the first layer",
    ("DAT002", "OPT003"): "one bad batch is seen as a spike of the loss",
    ("DAT002", "GRD006"): "one bad batch is seen as a spike of the gradient",
    ("DAT004", "OPT005"): "when targets do not follow from inputs, nothing can be learned",
    ("MOD002", "MOD001"): "dropout of nearly everything may be called a wrong mode or a setting out of range",
    ("MOD002", "GRD008"): "statistics of two samples, or dropout of nearly everything, are noise",
    ("NUM005", "NUM004"): "an overflow in half precision is first seen as an infinite activation",
    ("NUM005", "NUM002"): "an overflow in half precision makes the loss infinite in the same step",
    ("NUM005", "GRD004"): "gradients that underflow in half precision are exactly zero",
    ("NUM002", "DAT001"): "the loss overflows because the inputs are not scaled",
    ("NUM002", "DAT002"): "one batch that is not scaled makes the loss overflow",
    ("WGT006", "UPD003"): "a copy in place of a tied weight drifts from it, or is left out of the optimizer",
    ("ACT003", "GRD009"): "a prior term that drowns the reconstruction is what collapses the code",
    ("WGT001", "LSS003"): "a penalty with the wrong sign rewards large weights, and the loss falls below zero",
    ("OPT007", "GRD005"): "a rate just beyond what is stable throws the weights from one side to the other",
    ("OPT007", "OPT004"): "a rate just beyond what is stable is seen as a loss that swings",
    ("NUM004", "NUM002"): "what is not a number in a module's output is none in the loss of the same step",
    ("WGT005", "GRD009"): "a penalty that drowns the loss is what drives the weights to zero",
    ("OPT001", "WGT001"): "values that grow without end need weights that grow without end",
    ("DAT003", "GRD002"): "targets of a million give errors and gradients of a million",
    ("DAT003", "OPT007"): "with targets a thousand times too large any usual learning rate is too low",
    ("DAT003", "OPT005"): "with targets a thousand times too large nothing is learned in reasonable time",
}


def are_equivalent(best: str, said: str) -> bool:
    """Is `said` accepted where `best` is the best answer?"""
    return best == said or (best, said) in EQUIVALENT

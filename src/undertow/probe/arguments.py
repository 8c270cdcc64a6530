"""What the user hands to `watch`: checked, and brought into one form."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from undertow.errors import SettingError
from undertow.probe import discovery

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None
Optimizers = Optimizer | Sequence[Optimizer] | None


def roots_of(model: Models) -> dict[str, nn.Module] | None:
    if model is None:
        return None
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        _check_modules(list(model.values()))
        return {str(name): one for name, one in model.items()}
    models: list[Any] = list(model) if isinstance(model, (list, tuple)) else [model]
    _check_modules(models)
    return discovery.name_roots(models)


def _check_modules(models: Sequence[Any]) -> None:
    for one in models:
        if not isinstance(one, nn.Module):
            raise SettingError(
                f"the model to watch is a {type(one).__name__}",
                way_out="Pass a torch.nn.Module, several of them, or nothing to let Undertow find them",
            )


def optimizers_of(optimizer: Optimizers) -> list[Optimizer] | None:
    if optimizer is None:
        return None
    given: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in given:
        if not isinstance(one, Optimizer):
            raise SettingError(
                f"the optimizer is a {type(one).__name__}", way_out="Pass a torch.optim.Optimizer, or nothing"
            )
    return given


def check_globs(include: Sequence[str] | None, exclude: Sequence[str] | None, roots: dict[str, nn.Module]) -> None:
    """A glob that matches nothing is a typing mistake: say so before the training starts."""
    found = discovery.describe(roots, [])
    paths = [parameter.path for parameter in found.parameters] + [module.path for module in found.modules]
    for option, globs in (("include", include), ("exclude", exclude)):
        for glob in globs or ():
            if not any(fnmatch.fnmatchcase(path, glob) for path in paths):
                some = ", ".join(paths[:4])
                raise SettingError(f"{option} {glob!r} matches no layer", way_out=f"Layers are named like: {some}")

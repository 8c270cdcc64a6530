"""The whole parameters that `fully_shard` puts in place of the shards while a module runs.

Autograd sees those, optimizers see the shards. Which stands for which is written only in torch's own records; should a
release of torch keep them elsewhere, nothing is found here, and the order of the modules is all that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

POST_BACKWARD = (
    "RegisterPostBackwardFunction"  # passes a module's inputs through, to hear when backward is done with it
)


def gathered_parameters(roots: Iterable[torch.nn.Module]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each whole parameter, as soon as there is one, and the shard it stands for."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for root in roots:
        for module in root.modules():
            state = getattr(module, "_get_fsdp_state", None)
            for one in _parameters(state()) if state is not None else ():
                gathered, sharded = getattr(one, "_unsharded_param", None), getattr(one, "sharded_param", None)
                if gathered is not None and sharded is not None:
                    found.append((gathered, sharded))
    return found


def _parameters(state: Any) -> Iterable[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch before 2.12 has one group for each module
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [one for group in groups for one in getattr(group, "fsdp_params", ())]

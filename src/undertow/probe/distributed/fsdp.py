"""What torch's two kinds of `FSDP` make of a model's parameters.

`FullyShardedDataParallel` (FSDP1) lays a unit's parameters end to end in one flat tensor, of which every rank holds a
stretch. With `use_orig_params=True` each parameter is what lies of it in this rank's stretch, and may be empty; else
there is only the flat tensor. `fully_shard` (FSDP2) puts whole parameters in place of the shards while a module runs:
autograd sees those, optimizers see the shards. Which is which is written in torch's own records. Should a release of
torch keep them elsewhere, nothing is found, or reading them fails: nothing is measured rather than something wrong.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from undertow.probe.distributed.portions import Portion
from undertow.probe.unseen import modules_of


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of a parameter, as a stretch of its elements in order."""

    shape: tuple[int, ...]  # of the whole parameter
    portion: Portion | None  # None where every rank holds all of it


def shares_of(root: torch.nn.Module) -> dict[int, Share]:
    """By id of the parameter that an optimizer sees."""
    shares: dict[int, Share] = {}
    for handle in _handles([root]):
        flat = handle.flat_param
        is_cut = bool(handle.uses_sharded_strategy)
        if not handle._use_orig_params:
            size = prod(flat._unpadded_unsharded_size) if is_cut else flat.numel()
            begin = min(handle.rank * prod(flat._sharded_size), size) if is_cut else 0
            stretch = Portion((size,), (begin,), (min(flat.numel(), size - begin),))
            shares[id(flat)] = Share((size,), stretch if is_cut else None)
            continue
        for parameter, whole, part in zip(flat._params, flat._shapes, flat._shard_param_infos, strict=True):
            begin, count = (part.intra_param_start_idx, part.numel_in_shard) if part.in_shard else (0, 0)
            stretch = Portion((prod(whole),), (begin,), (count,))
            shares[id(parameter)] = Share(tuple(whole), stretch if is_cut else None)
    return shares


def flat_parameters(roots: Iterable[torch.nn.Module]) -> dict[int, tuple[int | None, ...]]:
    """By id of the flat tensor that autograd sees: the ids of the parameters it is split into, in that order."""
    found: dict[int, tuple[int | None, ...]] = {}
    for handle in _handles(roots):
        flat = handle.flat_param
        if handle._use_orig_params:
            parameters = iter(flat._params)
            found[id(flat)] = tuple(None if is_filler else id(next(parameters)) for is_filler in flat._is_padding_mask)
    return found


def are_exchanged(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], portions: Sequence[Portion | None]
) -> bool:
    """False for this rank's own gradients of whole parameters, which are kept until the ranks exchange them."""
    pairs = zip(parameters, gradients, portions)
    return all(portion is None or one.shape == gradient.shape for one, gradient, portion in pairs)


def local_stretch(tensor: torch.Tensor, portion: Portion, exchanged: bool) -> torch.Tensor:
    """Without what was appended to make all ranks' stretches of one length; nothing of what was not exchanged."""
    count = prod(portion.extent) if exchanged else 0
    if tensor.numel() < count:
        raise ValueError(f"a rank holds {tensor.numel()} elements of {count} that should be there")
    return tensor if tensor.numel() == count else tensor.reshape(-1)[:count]


def _handles(roots: Iterable[torch.nn.Module]) -> Iterator[Any]:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if kind is None:
        return
    for root in roots:
        for module in modules_of(root):
            handle: Any = module._handle if isinstance(module, kind) else None
            if handle is not None:
                yield handle


# Passes a module's inputs through, to be called when backward is done with it.
POST_BACKWARD = "RegisterPostBackwardFunction"


def gathered_parameters(roots: Iterable[torch.nn.Module]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each whole parameter, as soon as there is one, and the shard it stands for."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for root in roots:
        for module in modules_of(root):
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

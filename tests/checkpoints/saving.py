"""Small checkpoints on disk, in every format, from one dictionary of tensors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from undertow.checkpoints import Checkpoint

Tensors = dict[str, torch.Tensor]


def some_tensors(seed: int = 0) -> Tensors:
    """Of every type that weights have, with shapes that readers get wrong: scalar, empty, long, four-dimensional."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "embed.weight": normal(50, 8),
        "block.0.fc.weight": normal(16, 8).bfloat16(),
        "block.0.fc.bias": normal(16).half(),
        "block.10.conv.weight": normal(4, 3, 3, 3).double(),
        "norm.weight": torch.ones(16),
        "head.weight": normal(8, 16).to(torch.float8_e4m3fn),
        "tail.weight": normal(8, 16).to(torch.float8_e5m2),
        "temperature": torch.tensor(0.5),
        "nothing": torch.zeros(0, 4),
        "long": normal(1, 20_000),
        "norm.num_batches_tracked": torch.tensor(7),
    }


def values_of(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for entry in checkpoint.entries:
        elements = entry.load()
        assert elements.shape == entry.shape
        assert elements.raw.nbytes == entry.bytes
        found[entry.path] = elements.widen(elements.raw).astype(np.float64)
    return found


def assert_holds(checkpoint: Checkpoint, tensors: Tensors) -> None:
    """Every float tensor exactly, every other one named as skipped."""
    found = values_of(checkpoint)
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    assert set(found) == set(floats)
    for name, tensor in floats.items():
        np.testing.assert_array_equal(found[name], tensor.double().numpy(), err_msg=name)
    assert {one.path for one in checkpoint.skipped} == set(tensors) - set(floats)


def save_sharded(folder: Path, tensors: Tensors) -> Path:
    """Two files and an index, as the hub has them."""
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def save_distributed(folder: Path, state: dict[str, Any]) -> Path:
    import torch.distributed.checkpoint as distributed_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is only one process
        distributed_checkpoint.save(state, checkpoint_id=folder)
    return folder

"""Every format gives the same tensors, bit for bit, with the same names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.saving import assert_holds, save_distributed, save_sharded, some_tensors, values_of

from undertow.checkpoints import UnreadableCheckpointError, open_checkpoint


def test_safetensors(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    assert checkpoint.format == "safetensors"
    assert_holds(checkpoint, some_tensors())
    assert_holds(open_checkpoint(str(tmp_path)), some_tensors())


def test_safetensors_need_no_torch(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / "model.safetensors")
    code = "import sys, undertow; r = undertow.weights(sys.argv[1]); print(len(r.tensors), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "False"]


def test_sharded_with_an_index(tmp_path: Path) -> None:
    index = save_sharded(tmp_path, some_tensors())
    for path in (index, tmp_path):
        checkpoint = open_checkpoint(path)
        assert checkpoint.format == "safetensors, 2 files"
        assert_holds(checkpoint, some_tensors())


def test_sharded_torch_files(tmp_path: Path) -> None:
    tensors = some_tensors()
    torch.save({"a": tensors["embed.weight"]}, tmp_path / "one.bin")
    torch.save({"b": tensors["long"]}, tmp_path / "two.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "one.bin", "b": "two.bin"}}')
    assert_holds(open_checkpoint(tmp_path), {"a": tensors["embed.weight"], "b": tensors["long"]})


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_torch_file(tmp_path: Path, zipped: bool) -> None:
    tensors = some_tensors()
    if not zipped:  # torch itself cannot read float8 back from its old format
        tensors = {name: tensor for name, tensor in tensors.items() if tensor.element_size() > 1}
    torch.save(tensors, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint(tmp_path / "model.pt")
    assert checkpoint.format == "torch"
    assert_holds(checkpoint, tensors)
    assert checkpoint.notes == ()


def test_a_training_state_gives_its_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "x"}
    torch.save(saved, tmp_path / "training.ckpt")
    save_distributed(tmp_path / "distributed", saved)
    for path in (tmp_path / "training.ckpt", tmp_path / "distributed"):
        checkpoint = open_checkpoint(path)
        assert set(values_of(checkpoint)) == set(model.state_dict())
        assert checkpoint.notes == ("the weights are those under 'model'",)
        assert [one.path for one in checkpoint.skipped] == ["optimizer.*"]


def test_optimizer_state_by_any_name(tmp_path: Path) -> None:
    saved = {"net_g": {"w": torch.ones(2)}, "opt_g": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}}
    torch.save(saved, tmp_path / "gan.pt")
    assert list(values_of(open_checkpoint(tmp_path / "gan.pt"))) == ["net_g.w"]


def test_distributed(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in some_tensors().items() if name != "nothing"}
    checkpoint = open_checkpoint(save_distributed(tmp_path / "step-1", tensors))
    assert checkpoint.format == "torch distributed"
    assert_holds(checkpoint, tensors)


def test_distributed_parts_are_put_together(tmp_path: Path) -> None:
    """As ranks write them: parts of rows and columns, each with its own record."""
    from tests.checkpoints.splitting import save_in_parts

    whole = torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    transposed = torch.randn(6, 10, generator=torch.Generator().manual_seed(2)).t()
    save_in_parts(tmp_path, {"a.weight": whole, "b.weight": transposed})
    assert_holds(open_checkpoint(tmp_path), {"a.weight": whole, "b.weight": transposed})


def test_module() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    checkpoint = open_checkpoint(model)
    assert_holds(checkpoint, dict(model.state_dict()))
    kinds = {entry.path: str(entry.kind) for entry in checkpoint.entries}
    assert kinds == {
        "0.weight": "embedding",
        "1.weight": "weight",
        "1.bias": "bias",
        "2.weight": "norm scale",
        "2.bias": "norm shift",
        "2.running_mean": "buffer",
        "2.running_var": "buffer",
    }


def test_wrapper_names_are_removed_unless_two_become_one() -> None:
    ones = np.ones(3)
    assert list(values_of(open_checkpoint({"module._orig_mod.a.weight": ones}))) == ["a.weight"]
    both = {"module.a": ones, "a": ones}
    assert set(values_of(open_checkpoint(both))) == set(both)


def test_mapping() -> None:
    tensors = some_tensors()
    assert_holds(open_checkpoint(tensors), tensors)
    plain = {"a": [[1, 2], [3, 4]], "b": np.arange(6.0)[::2], "c": np.ones(3, ">f4"), "d": [0.5]}
    found = values_of(open_checkpoint(plain))
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], np.asarray(value))


def test_transposed_and_strided_tensors() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    assert_holds(open_checkpoint({"t": base.t(), "s": base[:, ::2]}), {"t": base.t(), "s": base[:, ::2]})


def test_tensors_that_have_no_values_are_named() -> None:
    odd = {
        "meta": torch.empty(3, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.ones(3, dtype=torch.complex64),
        "whole": np.arange(3),
    }
    checkpoint = open_checkpoint({**odd, "fine": torch.ones(2)})
    assert {one.path for one in checkpoint.skipped} == set(odd)
    assert all(one.reason for one in checkpoint.skipped)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"a.b": [[1.0], [1.0, 2.0]]}, "a.b"),
        ({"a.b": np.array([object()])}, "a.b"),
        ({"a.b": ["x"]}, "a.b"),
        ({3: [1.0]}, "3"),
    ],
    ids=["ragged", "objects", "text", "name"],
)
def test_mappings_that_are_none(weights: dict, named: str) -> None:
    with pytest.raises(UnreadableCheckpointError, match=named):
        open_checkpoint(weights)
    with pytest.raises(UnreadableCheckpointError, match="int"):
        open_checkpoint(7)

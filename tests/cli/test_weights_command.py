"""`undertow weights` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from undertow.cli import main


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    before = {
        "embed.weight": random.normal(0, 0.3, (60, 8)).astype(np.float32),
        "fc.weight": random.laplace(0, 0.1, (20, 60)).astype(np.float32),
        "fc.bias": random.laplace(0, 0.1, 20).astype(np.float32),
        "count": np.arange(3),
    }
    after = {name: value + np.asarray(0.02, value.dtype) for name, value in before.items() if name != "count"}
    after["fc.weight"] = after["fc.weight"].copy()
    after["fc.weight"][3, 4] = np.nan
    save_file(before, tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "after.safetensors", "--against", "before.safetensors", "--all"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("critical  after.safetensors · safetensors · 3 tensors, 1,700 parameters, 6.8 kB\n")
    assert "✖ critical  NUM003 non-finite-weight: fc.weight holds 1 NaN and 0 infinite of 1,200 elements" in out
    assert "Against before.safetensors: moved 0.0" in out
    for line in out.splitlines():
        assert len(line) <= 100


def test_json_is_strict_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "before.safetensors", "--json"]) == 0
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert report["health"] == "healthy"
    assert [tensor["path"] for tensor in report["tensors"]] == ["embed.weight", "fc.bias", "fc.weight"]
    assert report["skipped"][0]["path"] == "count"
    assert report["drift"] is None
    weight = report["tensors"][2]
    assert weight["spectrum"]["method"] == "exact"
    assert weight["initialisation"]["fan_in"] == 60
    bias = report["tensors"][1]
    assert bias["spectrum"] is None
    assert bias["missing"]["spectrum"] == "it needs two dimensions"


def test_what_was_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["weights", "before.safetensors"])
    assert "Note: left out count: stored as I64, not as plain floats" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["absent.safetensors", "empty", "text.pt"])
def test_unreadable_is_3_with_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("text.pt").write_text("hello")
    assert main(["weights", name]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("undertow: error UT006:")
    assert name in err
    assert err.count("\n") == 1


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "--help"]) == 0
    assert "Example:  undertow weights step-2000.safetensors --against" in capsys.readouterr().out


def test_formats_can_be_compared_with_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    torch.save({"model": load_file("before.safetensors")}, "before.pt")
    assert main(["weights", "before.safetensors", "--against", "before.pt", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drift"]["relative"] == 0.0
    assert report["notes"] == ["before.pt: the weights are those under 'model'"]


def test_a_fault_of_many_layers_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    save_file({f"block.{i}.weight": random.laplace(0, 5, (40, 30)) for i in range(6)}, "large.safetensors")
    assert main(["weights", "large.safetensors"]) == 0
    out = capsys.readouterr().out
    assert out.count("WGT003") == 1
    assert "the same in block.1.weight, block.2.weight, block.3.weight and 2 more" in out


def test_too_large_is_not_the_same_as_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    sizes = {"a": 1e-9, "b": 1.0, "c": 1e-9}
    weights = {f"{name}.weight": random.laplace(0, size, (40, 300)) for name, size in sizes.items()}
    save_file(weights, "both.safetensors")
    assert main(["weights", "both.safetensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("a.weight shrinks" in line for line in lines) == 1
    assert sum("b.weight multiplies" in line for line in lines) == 1
    assert "   the same in c.weight" in [line.rstrip() for line in lines]

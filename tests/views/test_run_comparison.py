"""Two runs beside each other: the first step and layer that differ, and what was different from the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.detect.building import Training

import undertow
from undertow.cli import group
from undertow.errors import SettingError
from undertow.run import Run
from undertow.schema import RunFacts, RunStatus
from undertow.store.writer import RunWriter
from undertow.views.run_comparison import CURVE_POINTS


def write(folder: Path, training: Training, lr: float = 0.1, command: str = "train.py", name: str = "") -> Path:
    facts = RunFacts(undertow="0.1.0", name=name, settings={"every": 1, "name": name}, status=RunStatus.FINISHED)
    facts.optimizers = [{"type": "SGD", "groups": [{"lr": lr}]}]
    facts.command = ["/somewhere/bin/undertow", "run", "--run-dir", folder.name, command]
    writer = RunWriter(folder, facts)
    writer.set_layers(training.layers, training.graph)
    for frame in training.frames:
        assert writer.append(frame)
    writer.write_facts()
    writer.close()
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", Training().run(20), name="base")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """From step 7 on `second` is off by a part in a thousand, from step 12 on it is double; `head` is NaN at 15."""
    training = Training().run(7).run(5, gradient_norm={"second": 0.1001})
    training.run(3, gradient_norm={"second": 0.2})
    bad = {"gradient_norm": {"second": 0.2, "head": float("nan")}, "gradient_nonfinite_count": {"head": 3.0}}
    training.run(5, scalars={"loss": 2.0}, **bad)
    return write(tmp_path / "parted", training, lr=0.2, command="other.py", name="parted")


def test_the_first_step_and_layer_are_found(base: Path, parted: Path) -> None:
    found = undertow.compare(base, undertow.open_run(parted))
    assert (found.step, found.layer) == (7, "second.weight")
    assert found.layers == ("second.weight", "second.bias")
    (pair,) = found.pairs
    assert (pair.common_steps, pair.common_layers, pair.clear_step) == (20, 8, 12)
    by_layer = {one.layer: one for one in pair.by_layer}
    assert by_layer["first.weight"].step is None
    assert by_layer["second.weight"].norms == pytest.approx((0.1, 0.1001))
    assert by_layer["second.weight"].clear_step == 12
    assert (by_layer["head.bias"].step, by_layer["head.bias"].clear_step) == (15, 15)
    assert by_layer["head.bias"].norms[1] is None
    assert pair.scalars == {"loss": 15}


def test_only_what_differs_at_the_start_is_listed(base: Path, parted: Path) -> None:
    found = {row.setting: row.values for row in undertow.compare(base, parted).differences}
    assert found == {
        "optimizer.groups.0.lr": ("0.1", "0.2"),
        "command": ("undertow run train.py", "undertow run other.py"),
    }


def test_a_run_is_the_same_as_itself(base: Path) -> None:
    found = undertow.compare(base, base)
    assert (found.step, found.layer, found.layers, found.differences) == (None, None, (), ())
    assert [one.step for one in found.pairs[0].by_layer] == [None] * 8


def test_steps_that_only_one_run_measured_are_no_difference(base: Path, tmp_path: Path) -> None:
    rare = Training()
    for step in range(20):
        rare.run(1, streams=("gradient",) if step % 4 == 0 else ())
    found = undertow.compare(base, write(tmp_path / "rare", rare))
    assert found.step is None


def test_curves_stand_over_the_same_steps(tmp_path: Path) -> None:
    long, late = Training(), Training()
    for step in range(500):
        long.run(1, scalars={"loss": float(step)}, streams=())
    late.step = 400
    for step in range(400, 1000):
        late.run(1, scalars={"loss": float(step) if step != 700 else float("nan")}, streams=())
    folders = [write(tmp_path / name, run) for name, run in (("long", long), ("late", late))]
    loss = next(curve for curve in undertow.compare(*folders).curves if curve.name == "loss")
    assert len(loss.steps) == CURVE_POINTS
    assert loss.steps[:3] == (0, 5, 10)
    one, other = (np.array([np.nan if value is None else value for value in row]) for row in loss.values)
    assert np.isnan(one[100:]).all()
    assert np.isnan(other[:80]).all()
    assert one[80:100] == pytest.approx(other[80:100])
    assert one[0] == pytest.approx(2.0)  # the mean of steps 0 to 4
    assert loss.nonfinite_step == (None, 700)


def test_other_layers_are_named(base: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", Training("first", "second", "new").run(20))
    (pair,) = undertow.compare(base, other).pairs
    assert pair.common_layers == 4
    assert pair.only_in_first == ("third.weight", "third.bias", "head.weight", "head.bias")
    assert pair.only_in_other == ("new.weight", "new.bias")
    stranger = write(tmp_path / "stranger", Training("alpha", "beta").run(3))
    assert undertow.compare(base, stranger).pairs[0].reason == "they have no layer in common"


def test_one_run_is_too_few(base: Path) -> None:
    with pytest.raises(SettingError, match="two runs"):
        undertow.compare(base)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def test_the_command_tells_it_in_words(base: Path, parted: Path) -> None:
    text = invoke("compare", base, parted).stdout
    assert "They diverge at step 7: gradients differ in second.weight, second.bias." in text
    assert "By more than 10 % from step 12, first in second.weight, second.bias." in text
    assert "optimizer.groups.0.lr  0.1" in text
    assert "loss at step" in text
    assert "They are the same: equal gradient norms at all 20 common steps" in invoke("compare", base, base).stdout
    three = invoke("compare", base, parted, base).stdout
    assert "A and B diverge at step 7" in three
    assert "A and C are the same" in three


def test_the_command_tells_it_to_machines(base: Path, parted: Path, tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", Training())
    record: dict[str, Any] = json.loads(invoke("compare", base, parted, empty, "--json").stdout)
    assert (record["step"], record["layer"]) == (7, "second.weight")
    assert [run["recorded"] for run in record["runs"]] == [20, 20, 0]
    assert record["pairs"][1]["reason"] == "one of them has no gradients"
    assert {"runs", "pairs", "differences", "curves", "step", "layer"} == set(record)


def test_the_command_refuses(base: Path) -> None:
    assert invoke("compare", base).exit_code == 2
    assert invoke("compare").exit_code == 2
    assert getattr(invoke("compare", base, "nowhere").exception, "exit_code", None) == 3


def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    names = ("[red]bold[/]", "n" * 3000, "\u202egnid")
    one = write(tmp_path / "one", Training(*names).run(3), name="[bold]x")
    two = write(tmp_path / "two", Training(*names).run(3, gradient_norm=0.7), name="<b>y")
    text = invoke("compare", one, two, "--all").stdout
    assert "[red]bold[/].weight" in text
    assert "[bold]x" in text
    assert "\u202e" not in text
    assert Run(one).name == "[bold]x"

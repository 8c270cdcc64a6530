"""What users get wrong: one clear error that names the value, before any training starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, classes, mlp, train
from torch import nn

from undertow.errors import SettingError, UnwritableRunError
from undertow.probe import discovery, taps


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"include": "nothing.*"}, "nothing.*"),
        ({"exclude": ["0.*", "typo"]}, "typo"),
        ({"every": -1}, "-1"),
        ({"every": 0}, "0"),
        ({"budget": 2.0}, "2.0"),
        ({"activations": "often"}, "often"),
        ({"on_critical": "explode"}, "explode"),
    ],
)
def test_bad_settings(watch, arguments, says):
    with pytest.raises(SettingError, match=says.replace("*", ".").replace(".", r".")):
        watch(mlp(4, 4, 2), **arguments)
    assert not taps.installed()


def test_resume_needs_a_folder(watch):
    with pytest.raises(SettingError, match="resume"):
        watch(nn.Linear(2, 2), resume=True, run_dir=None)


@pytest.mark.parametrize("optimizer", [3, [{}]])
def test_not_an_optimizer(watch, optimizer):
    with pytest.raises(SettingError, match=r"int|dict"):
        watch(nn.Linear(2, 2), optimizer=optimizer)


@pytest.mark.parametrize("model", ["a string", 3, [nn.Linear(2, 2), None]])
def test_not_a_model(watch, model):
    with pytest.raises(SettingError, match=r"str|int|NoneType"):
        watch(model)


def test_unwritable_and_used_folders(watch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UnwritableRunError, match="file"):
        watch(nn.Linear(2, 2), run_dir=tmp_path / "file" / "run")
    watch(nn.Linear(2, 2), run_dir=tmp_path / "run").close()
    with pytest.raises(UnwritableRunError, match="already holds a run"):
        watch(nn.Linear(2, 2), run_dir=tmp_path / "run")
    assert not taps.installed()


def test_include_and_exclude(watch):
    model = mlp(8, 16, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, include=["0.*", "2.*"], exclude="*.bias") as w:
        train(model, optimizer, 3, batches(8), classes(4))
    assert [layer for layer in w.run.layers if not layer.is_module] == ["0.weight", "2.weight"]
    assert w.run.diagnose().coverage.layers_skipped > 0


def test_globs_that_leave_nothing_in_a_found_model(watch, capsys):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(None, include="no.such.*", quiet=False) as w:
        train(model, optimizer, 3, batches(8), classes(4))
    said = capsys.readouterr().err
    assert said.count("UT001") == 1
    assert "0.weight" in said
    assert w.run.diagnose().coverage.reasons


def test_looking_for_models_does_not_go_on_for_ever(watch, monkeypatch):
    """A loop that never steps an optimizer (adversarial examples, say) must not be slowed by our looking."""
    count = 0
    scan = discovery.live_optimizers

    def counted():
        nonlocal count
        count += 1
        return scan()

    monkeypatch.setattr(discovery, "live_optimizers", counted)
    x = torch.zeros(4, requires_grad=True)
    with watch(None) as w:
        for _ in range(200):
            x.square().sum().backward()
    assert count <= 9
    assert w.run.diagnose().health is None


def test_a_run_without_steps(watch):
    with watch(nn.Linear(2, 2)) as w:
        pass
    run = w.run
    assert len(run.steps) == 0
    diagnosis = run.diagnose()
    assert diagnosis.health is None
    assert diagnosis.coverage.reasons


def test_log_needs_numbers(watch):
    with watch(nn.Linear(2, 2)) as w, pytest.raises(SettingError, match="loss='high'"):
        w.log(loss="high")


def test_several_models_by_list_and_by_name(watch):
    left, right = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1)
    for models in ([left, right], {"left": left, "right": right}):
        with watch(models) as w:
            for step in range(2):
                optimizer.zero_grad()
                right(left(batches(4)(step))).square().mean().backward()
                optimizer.step()
        assert {layer for layer in w.run.layers if layer.endswith("weight")} == {"left.weight", "right.weight"}
        assert np.isfinite(w.run.series("gradient_norm", "left.weight")).all()


def test_models_that_were_found_are_called_as_the_object_that_trains_them_calls_them(watch):
    class Trainer:
        def __init__(self):
            self.actor, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD([*self.actor.parameters(), *self.critic.parameters()], lr=0.1)

        def step(self, batch):
            self.optimizer.zero_grad()
            self.critic(self.actor(batch)).square().mean().backward()
            self.optimizer.step()

    trainer = Trainer()
    with watch(None) as w:
        for step in range(2):
            trainer.step(batches(4)(step))
    assert {layer for layer in w.run.layers if layer.endswith("weight")} == {"actor.weight", "critic.weight"}


def test_the_module_watch_can_be_called(tmp_path):
    import undertow.watch as module  # from here on `undertow.watch` is the module

    model = mlp(8, 16, 4)
    with module(model, run_dir=tmp_path / "run", every=1, quiet=True) as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, batches(8), classes(4))
    assert w.run.steps.tolist() == [0, 1, 2]


def test_inference_alone_is_left_alone(watch):
    """Forward passes that no backward pass follows: our hooks go away by themselves."""
    from torch.nn.modules import module as modules

    model = mlp(8, 16, 4)
    with watch(None, activations=True) as w:
        for _ in range(100):
            model(torch.zeros(2, 8))
        assert not modules._global_forward_hooks
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 3, batches(8), classes(4))
    assert w.run.steps.tolist() == [0, 1, 2]
    assert w.run.series("activation_calls", "0").tolist()[1:] == [1.0, 1.0]

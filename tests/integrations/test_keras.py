"""Keras 3 on torch, the real package, against the same training counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from undertow.run import open_run

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend
STEPS, RATE, CLIP = 8, 0.05, 0.1


@pytest.fixture(name="keras")
def _keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # read when it is imported
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("Keras was imported with another backend")
    return keras


def network(keras: Any, **optimizer: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="tanh", name="first")]
    model = keras.Sequential([*layers, keras.layers.Dense(1, name="last")], name="network")
    model.compile(optimizer=keras.optimizers.SGD(RATE, **optimizer), loss="mse")
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(1).standard_normal((STEPS * 4, 8)).astype(np.float32)
    return inputs, inputs.sum(1, keepdims=True)


def fit(model: Any, *callbacks: Any, **more: Any) -> None:
    model.fit(*data(), batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks), **more)


def by_hand(weights: list[np.ndarray], clip: float | None) -> tuple[list[float], list[float], list[np.ndarray]]:
    """Gradient norms before clipping, losses, and the weights at the end, of the plain loop that `fit` stands for."""
    parameters = [nn.Parameter(torch.tensor(weight)) for weight in weights]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    norms, losses = [], []
    inputs, targets = (torch.tensor(part).split(4) for part in data())
    for some, wanted in zip(inputs, targets):
        hidden = torch.tanh(some @ parameters[0] + parameters[1])
        loss = (hidden @ parameters[2] + parameters[3] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(parameters, clip or float("inf"))))
        losses.append(float(loss.detach()))
        optimizer.step()
    return norms, losses, [parameter.detach().numpy() for parameter in parameters]


@pytest.mark.parametrize("clip", [None, CLIP])
def test_numbers_are_those_counted_by_hand(keras: Any, clip: float | None, tmp_path: Path) -> None:
    from undertow.integrations.keras import UndertowCallback

    settings: dict[str, Any] = {"global_clipnorm": clip} if clip else {}
    model = network(keras, **settings)
    norms, losses, weights = by_hand([weight.numpy(force=True) for weight in values(model)], clip)
    callback = UndertowCallback(run_dir=tmp_path / "run", every=1, quiet=True)
    fit(model, callback, validation_data=data())
    run = open_run(tmp_path / "run")
    assert run.status == "finished"
    assert sorted(layer.path for layer in run.layers.parameters) == [
        "first.bias",
        "first.kernel",
        "last.bias",
        "last.kernel",
    ]
    assert run.steps.tolist() == list(range(STEPS))
    assert run.scalars("loss").tolist() == pytest.approx(losses, rel=1e-5)
    assert run.scalars("gradient_norm_total").tolist() == pytest.approx(norms, rel=1e-4)
    coefficients = [min(1.0, clip / norm) if clip else 1.0 for norm in norms]
    assert run.scalars("clip_coefficient").tolist() == pytest.approx(coefficients, rel=1e-3)
    assert run.scalars("lr").tolist() == pytest.approx([RATE] * STEPS)
    assert np.isfinite(run.scalars("val_loss")[-1])
    for name, mine in zip(("first.kernel", "first.bias", "last.kernel", "last.bias"), weights):
        assert run.series("weight_norm", name)[-1] == pytest.approx(np.linalg.norm(mine), rel=1e-4)
    assert run.series("update_norm", "first.kernel").min() > 0
    assert "apply" not in model.optimizer.__dict__


def values(model: Any) -> list[torch.Tensor]:
    return [variable.value.detach().clone() for variable in model.trainable_variables]


def test_the_training_is_the_same_as_without(keras: Any, tmp_path: Path) -> None:
    from undertow.integrations.keras import UndertowCallback

    plain, watched = network(keras, momentum=0.9, clipnorm=CLIP), network(keras, momentum=0.9, clipnorm=CLIP)
    fit(plain)
    fit(watched, UndertowCallback(run_dir=tmp_path / "run", every=1, quiet=True))
    assert all(torch.equal(one, other) for one, other in zip(values(plain), values(watched)))


def test_what_would_be_measured_wrongly_is_not_watched(
    keras: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from undertow.integrations.keras import UndertowCallback

    model = network(keras, gradient_accumulation_steps=2)
    fit(model, UndertowCallback(run_dir=tmp_path / "run"))
    assert "gradient accumulation inside a Keras optimizer is not supported" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

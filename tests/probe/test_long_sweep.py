"""Models that come and go under one watch: frames and tables stay as small as the models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.probe.test_lifetimes import _STEPS, Deep, Follower, _loop, plain
from torch import nn

Watching = Any  # the fixture


def test_layers_that_are_gone_leave_the_frames(watch: Watching) -> None:
    """Frames of a sweep are as large as those of its models, however many there have been."""
    with watch(every=1, activations=True) as w:
        for _ in range(4):
            plain(Follower())
    frames, layers = list(w.run.reader.frames()), w.run.layers
    for stream, of_one in (("gradient", 6), ("activation", 6)):
        ids: list[set[int]] = [set(frame.blocks[stream].layer_ids.tolist()) for frame in frames]
        assert {len(some) for some in ids} == {of_one}
        assert len(set().union(*ids)) == 4 * of_one
    kept = [layer for layer in layers if layer.path.endswith("inner.0.weight")]
    drifts = np.stack([w.run.series("weight_drift", layer.path) for layer in kept])
    assert np.isfinite(drifts).sum(axis=1).tolist() == [_STEPS] * 4  # old steps as before, nothing after


def test_the_layers_of_a_very_long_sweep_are_bounded(watch: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a name that very many have had get the layers of the first of them, and begin anew with them."""
    monkeypatch.setattr("undertow.probe.subjects._MOST_GONE", 2)
    with watch(every=1, activations=True) as w:
        for _ in range(9):
            plain(Follower())
        model = Deep()  # of another size
        model.head = nn.Linear(16, 5)
        _loop(Follower(), model, torch.optim.Adam(model.parameters()))
    assert w.run.status == "finished"
    assert len(w.run.steps) == 10 * _STEPS
    heads = [layer for layer in w.run.layers if layer.path.endswith("head.weight")]
    assert [layer.path for layer in heads] == ["head.weight", "model.head.weight", "model_2.head.weight"]
    assert [layer.shape for layer in heads] == [(3, 16), (5, 16), (3, 16)]
    measured = [np.flatnonzero(np.isfinite(w.run.series("gradient_norm", layer.path))) for layer in heads]
    assert [sorted(set((steps // _STEPS).tolist())) for steps in measured] == [[0], [1, 3, 5, 7, 9], [2, 4, 6, 8]]
    reused = np.flatnonzero(np.nan_to_num(w.run.scalars("layers_reused")))
    assert reused.tolist() == [number * _STEPS for number in range(3, 10)]
    assert np.nan_to_num(w.run.scalars("another_training"))[reused].all()
    assert "optimizer_made_anew" not in w.run.scalar_names
    cosines = w.run.series("gradient_cosine", "model.head.weight")
    assert np.isnan(cosines[[_STEPS * number for number in (1, 3, 5, 7, 9)]]).all()  # compared with nobody else's
    assert [finding for finding in w.run.findings if finding.code == "OPT005"] == []


def test_a_model_that_still_has_parts_keeps_its_layers(watch: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undertow.probe.subjects._MOST_GONE", 1)
    with watch(every=1) as w:
        plain(Follower())
        model = Deep()
        head = model.head
        _loop(Follower(), model, torch.optim.Adam(model.parameters()))
        del model
        for _ in range(3):
            plain(Follower())
        assert head.weight.grad is not None
    heads = [layer.path for layer in w.run.layers if layer.path.endswith("head.weight")]
    assert heads == ["head.weight", "model.head.weight", "model_2.head.weight"]

"""WGT003: a table or head begins so large that the first answers are certain."""

from __future__ import annotations

from tests.detect.rules.weights.starts import scaled, start


def test_a_tied_table_that_makes_the_first_answers_certain() -> None:
    parts = ("table:Embedding", "0:Linear", "norm:LayerNorm", "2:Linear")
    known = {"loss_kind": 1.0, "loss_classes": 8.0, "output_max_probability": 0.97, "output_accuracy": 0.1}
    weights = {"table.weight": 32.0, **scaled(_0=0.58, _2=0.58)}  # an RMS of four
    signals = {"0": 0.5, "2": 0.5}
    training = start(parts, weights, signals, loss=40.0, **known)
    assert training.findings()[0].layers == ("table.weight",)
    assert start(parts, weights, signals, loss=4.0, **known).codes() == []
    usual = {"table.weight": 8.0, **scaled(_0=0.58, _2=0.58)}  # as PyTorch makes it
    assert start(parts, usual, signals, loss=40.0, **known).codes() == []

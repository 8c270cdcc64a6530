"""Many layers in few words."""

from __future__ import annotations

import pytest

from undertow.views.places import where

TENSORS = [
    "tokens.weight", "places",
    *(f"blocks.{block}.{name}" for block in range(4) for name in ("norm.weight", "norm.bias", "grow.weight")),
    "head.weight", "head.bias",
]  # fmt: skip


def within(*prefixes: str) -> list[str]:
    return [path for path in TENSORS if path.startswith(prefixes)]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([], "the training as a whole"),
        (["head.weight", "head.bias"], "head.weight, head.bias"),
        (TENSORS, "every layer (16 tensors)"),
        (within("places", "tokens", "blocks.0", "blocks.1", "blocks.2"), "tokens, places and blocks.0–2 (11 tensors)"),
        (within("blocks"), "blocks (12 tensors)"),
        (within("blocks.3", "blocks.1"), "blocks.1 and blocks.3 (6 tensors)"),
        # A module of which one tensor is left out is not named in its place.
        (within("blocks.0", "blocks.1.norm", "head"), "blocks.0, blocks.1.norm and head (7 tensors)"),
        (
            within("blocks.0.n", "blocks.1.n", "blocks.2.n"),
            "blocks.0.norm, blocks.1.norm and blocks.2.norm (6 tensors)",
        ),
    ],
)
def test_where(layers: list[str], words: str) -> None:
    assert where(layers, TENSORS) == words


def test_without_the_whole_model_nothing_is_put_together() -> None:
    assert where(within("blocks")) == "blocks.0.norm.weight, blocks.0.norm.bias, blocks.0.grow.weight, " + (
        "blocks.1.norm.weight and 8 more"
    )


def test_paths_that_are_no_tensors_stay() -> None:
    layers = [*within("blocks.0"), "somewhere.else", "blocks.1"]
    assert where(layers, TENSORS) == "blocks.0–1 and somewhere.else (5 tensors)"


def test_many_places_are_cut_short() -> None:
    layers = within("blocks.0", "blocks.2", "head", "tokens")
    assert where(layers, TENSORS, 2) == "tokens, blocks.0 and more (9 tensors in all)"

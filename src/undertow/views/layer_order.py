"""The order in which layers are shown, one below the other."""

from collections.abc import Sequence

from undertow.schema import Layer


def reading_order(layers: Sequence[Layer]) -> list[int]:
    """Places in `layers`: as executed; in the model's own order where some have no place in the execution."""
    places = list(range(len(layers)))
    if any(layer.order is None for layer in layers):
        return places
    return sorted(places, key=lambda place: (layers[place].order or 0, layers[place].id))

"""The lines a finding points at, as a compiler prints them: the code with a mark, and what else there is."""

import textwrap
from collections.abc import Iterator, Sequence

from undertow.schema import SourcePlace

# What a further place has to do with the finding.
_ROLES = {
    "optimizer": "the optimizer is made here",
    "schedule": "the schedule is made here",
    "scaler": "the loss scaler is made here",
    "loader": "the data loader is made here",
    "definition": "the layer is made here",
    "initialisation": "the weights are set here",
    "overwritten": "the weights are written here",
    "freeze": "the weights are frozen here",
    "loss": "the loss is computed here",
    "total": "what backward begins with is computed here",
    "backward": "backward is called here",
    "step": "the optimizer steps here",
    "clip": "gradients are clipped here",
    "zero_grad": "gradients are cleared here",
    "cut": "the graph is cut here",
    "data": "the inputs come from here",
    "target": "the targets come from here",
    "setting": "a setting of the optimizer is changed here",
    "evaluation mode": "evaluation mode is set here",
    "operation": "this operation can give NaN or infinity",
    "squash": "what the loss is given is squashed here",
    "sign": "the sign is turned here",
    "broadcast": "shapes are broadcast here",
    "precision": "precision is lowered here",
    "attention": "attention is normalised here",
}


def heading(place: SourcePlace) -> str:
    """`model.py:31 in Denoiser.forward`."""
    inside = "" if place.function in ("", "<module>") else f" in {place.function}"
    return f"{place.address}{inside}"


def remark(place: SourcePlace) -> str:
    """What happens there."""
    words = _ROLES.get(place.role, place.role)
    return f"{words}: {place.note}" if place.note else words


def excerpt(place: SourcePlace, around: bool = True) -> list[str]:
    """The code with its line numbers, a remark behind its first line; empty where the run holds no text."""
    return [
        f"{number:>{len(str(place.end_line + 1))}} | {text}".rstrip() + (f"   ← {remark(place)}" if marked else "")
        for number, text, marked in _lines(place, around)
    ]


def further(places: Sequence[SourcePlace]) -> Iterator[str]:
    """One line for each of the places after the first: what is there, and where."""
    for place in places[1:]:
        yield f"{remark(place)}: {place.address}"


def _lines(place: SourcePlace, around: bool) -> Iterator[tuple[int, str, bool]]:
    code = place.code.splitlines()
    if not code:
        return
    before, after = (place.before, place.after) if around else ("", "")
    texts = textwrap.dedent("\n".join([before, *code, after])).splitlines()
    for offset, text in enumerate(texts):
        if 0 < offset <= len(code) or text.strip():
            yield place.line - 1 + offset, text, offset == 1

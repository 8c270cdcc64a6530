"""The lines of a picture of the flow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from undertow.show.pictures.flow import FlowPicture
from undertow.views.flow_rows import FlowLink


def test_an_arc_leads_from_row_to_row_and_swings_out_in_between() -> None:
    picture: Any = SimpleNamespace(dots=100.0, _middle=lambda row: 10.0 * row)
    assert FlowPicture._curve(picture, FlowLink(1, 2, None), 0.0) == [(100.0, 10.0), (100.0, 20.0)]
    arc = FlowPicture._curve(picture, FlowLink(1, 5, None), 20.0)
    assert (arc[0], arc[16], arc[-1]) == ((100.0, 10.0), (80.0, 30.0), (100.0, 50.0))

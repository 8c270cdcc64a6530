"""Every record: written and read back without a loss, compared by what it holds, and honest about what it lacks."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.components.edge_inputs import results
from tests.varied import varied_run

import undertow
from undertow.schema import GradientAlert, GradientFrame, InputError, VanishingGradients, seeds
from undertow.schema.seeds.record import Record

RECORDS = [
    kind for name in seeds.__all__ if isinstance(kind := getattr(seeds, name), type) and issubclass(kind, Record)
]
NUMBERS = st.floats() | st.sampled_from([1e-8, 1e16, 1e-5, 0.1, -0.0])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
GIVEN = ("GradientFlow", "GradientHistory")  # what the user fills in, and may leave out


def values(hint: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(*(values(one) for one in inner))
    if origin in (list, Sequence, deque) or hint is deque:
        return st.lists(values(inner[0]), max_size=2).map(deque if origin is deque else list)
    if origin is tuple:
        return (
            st.lists(values(inner[0]), max_size=3).map(tuple)
            if inner[-1] is Ellipsis
            else st.tuples(*map(values, inner))
        )
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return st.dictionaries(TEXTS, values(inner[1]), max_size=2)
    if origin is not None:  # collections.abc.Sequence
        return st.lists(values(inner[0]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return built(hint)
    plain = {float: NUMBERS, int: st.integers(0, 2**53), bool: st.booleans(), str: TEXTS, NoneType: st.none()}
    return plain[hint]


def built(kind: type[Record]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    parts = {one.name: values(hints[one.name]) for one in fields(kind)}  # type: ignore[arg-type]
    if "max_history_length" in parts:
        parts["max_history_length"] = st.integers(3, 9)
    return st.builds(kind, **parts)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_round_trip(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(built(kind))
    text = record.to_json()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    for again in (kind.from_json(text), kind.from_json(record.to_json(indent=2)), kind.from_dict(record.to_dict())):
        assert again == record
    for again in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert again == record
    if kind.__hash__ is not None:
        assert hash(kind.from_json(text)) == hash(record)
    assert str(record).splitlines()[0] == kind.__name__
    assert "\n" not in repr(record)


def test_what_differs_is_not_equal() -> None:
    frame = GradientFrame(1, [])
    assert frame != GradientFrame(2, [])
    assert frame != VanishingGradients("a", 1.0, 2.0)
    assert frame != "frame"
    assert len({GradientFrame(1, []), frame, GradientFrame(2, [])}) == 2


def test_numbers_are_spelt_as_the_original_does() -> None:
    spelt = VanishingGradients("a", 1e-8, 1e16).to_json()
    assert spelt == '{"VanishingGradients":{"layer_name":"a","norm":1e-8,"threshold":1e16}}'
    assert GradientAlert.from_json(spelt) == VanishingGradients("a", 1e-8, 1e16)
    assert '"norm":"NaN","threshold":"-Infinity"' in VanishingGradients("a", math.nan, -math.inf).to_json()


@pytest.mark.parametrize("text", ["[1]", "{", '{"step": "x", "layers": []}', '{"layers": []}', "3"])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no"):
        GradientFrame.from_json(text)


def test_directions_that_are_made_when_asked_for_are_written_and_compared() -> None:
    history = undertow.GradientHistory.from_norms("a", [1.0, math.nan, 2.0], cosines=[0.1, 0.2, math.nan])
    flow = undertow.GradientFlowVisualizer().generate_visualization([history])
    again = type(flow).from_json(flow.to_json())
    assert flow == again == copy.deepcopy(flow)
    assert again.layer_flows["a"].gradient_directions[1].consistency_score == 0.2
    assert math.isnan(again.layer_flows["a"].gradient_magnitudes[1])


def test_frames_are_read_back(tmp_path: Path) -> None:
    animator = undertow.GradientFlowAnimator()
    for step in range(3):
        animator.record_step(10 * step, {"a,b": [1e-9 * step], "c": [1.0, 2.0], "d": [math.nan, 3.0]})
    animator.export_json(tmp_path / "frames.json")
    animator.export_csv(tmp_path / "frames.csv")
    assert GradientFrame.read_json(tmp_path / "frames.json") == animator.frames()
    assert "1e-9" in (tmp_path / "frames.json").read_text()
    for got, frame in zip(GradientFrame.read_csv(tmp_path / "frames.csv"), animator.frames(), strict=True):
        assert [layer.name for layer in got.layers] == [layer.name for layer in frame.layers]
        for one, other in zip(got.layers, frame.layers, strict=True):
            assert one.grad_norm == pytest.approx(other.grad_norm, nan_ok=True)
            assert one.flow_intensity == pytest.approx(other.flow_intensity, nan_ok=True)
            assert (one.presence, one.is_vanishing) == (other.presence, other.is_vanishing)
    (tmp_path / "bad.csv").write_text("step,layer\n1,a\n")
    (tmp_path / "bad.json").write_text('[{"step": 1}]')
    for read, name in ((GradientFrame.read_csv, "bad.csv"), (GradientFrame.read_json, "bad.json")):
        with pytest.raises(InputError, match="holds no frames"):
            read(tmp_path / name)


def records_in(value: Any) -> Iterator[Record]:
    if isinstance(value, Record):
        yield value
        value = [getattr(value, one.name) for one in fields(value)]  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from records_in(one)


def lacking(record: Record) -> Iterator[str]:
    """Fields that are None, or hold None, without a word about it."""
    reasons = getattr(record, "unavailable", {})
    for one in fields(record):  # type: ignore[arg-type]
        value = getattr(record, one.name)
        parts = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
        if (value is None or any(part is None for part in parts)) and not reasons.get(one.name):
            yield one.name


def test_what_is_not_available_says_why(tmp_path: Path) -> None:
    run = undertow.open_run(varied_run(tmp_path / "run"))
    seen: set[str] = set()
    silent: set[tuple[str, str]] = set()
    for result in [*results(), run.flow(), run.dynamics()]:
        for record in records_in(result):
            name = type(record).__name__
            seen.add(name)
            silent |= {(name, field) for field in lacking(record) if name not in GIVEN}
    assert silent == set()
    may_be_none = {kind.__name__ for kind in RECORDS if _may_be_none(kind)} - set(GIVEN)
    assert may_be_none <= seen  # so that none is true for want of an example
    assert all("unavailable" in {one.name for one in fields(kind)} for kind in RECORDS if kind.__name__ in may_be_none)  # type: ignore[arg-type]


def _may_be_none(kind: type[Record]) -> bool:
    return any("None" in str(hint) for hint in get_type_hints(kind).values())


def test_text_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    norms = {f"layer{number}": np.ones(20) for number in range(40)}
    analysis = undertow.EnhancedGradientAnalyzer().analyze_gradients(norms)
    print(analysis)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 140
    assert any("layer_name" in line and "overall_health" in line for line in lines)
    assert any("… and 28 more" in line for line in lines)
    assert any("not available: no loss was given" in line for line in lines)
    weights = str(undertow.WeightAnalyzer.analyze_weight_distribution([[1.0, 2.0]]))
    assert "health_score" in weights.splitlines()[2]  # what the tensor itself is said to be, before its moments

"""Small files that would take gigabytes or for ever: an answer in words within 10 s and 1 GB."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import limited
from tests.checkpoints.bombs import BOMBS

from undertow.checkpoints.pickle_bounds import PickleBombError, check_pickle

WEIGH_ALL = """
import sys, time
from pathlib import Path
from undertow.cli import main

import torch
for folder in sorted(Path(sys.argv[1]).iterdir()):
    (file,) = folder.iterdir()
    began = time.process_time()
    code = main(["weights", str(file)])
    seconds = time.process_time() - began
    print(f"{folder.name}: {code} after {seconds:.1f} s", file=sys.stderr, flush=True)
    assert code in (0, 3), folder.name
    assert seconds < 10, folder.name
"""


def test_every_bomb_is_answered_in_words(tmp_path: Path) -> None:
    for name, (file, make) in BOMBS.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / file)
    ended = limited.python("-c", WEIGH_ALL, tmp_path, address_space=8 * limited.GIGABYTE, patience=200)
    assert ended.code == 0, ended.err
    assert "internal error" not in ended.err
    assert ended.memory < limited.GIGABYTE, ended.memory


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.sets(st.integers())
    ),
)


@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL), before=st.binary(max_size=9))
def test_honest_pickles_pass(value: object, protocol: int, before: bytes) -> None:
    data = pickle.dumps(value, protocol)
    assert check_pickle(before + data + b"more", len(before)) == len(before) + len(data)


@given(data=st.binary(max_size=40))
def test_any_bytes_are_walked_or_refused(data: bytes) -> None:
    try:
        end = check_pickle(b"\x80\x02" + data)
    except PickleBombError:
        return
    assert list(pickletools.genops((b"\x80\x02" + data)[:end]))


@pytest.mark.parametrize("new", [True, False])
def test_a_model_of_many_layers_passes(tmp_path: Path, new: bool) -> None:
    state = {f"layers.{i}.weight": torch.zeros(2) for i in range(5000)}
    torch.save({"model": state, "step": 3}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    ended = limited.undertow("weights", tmp_path / "a.pt", address_space=8 * limited.GIGABYTE)
    assert ended.code == 0, ended.err
    assert "5,000" in ended.out

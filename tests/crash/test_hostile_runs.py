"""One hostile run among good ones: every command answers in words, and the good ones are listed beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests import limited
from tests.crash.hostile_runs import HOSTILE, make_run

from undertow.show.web.library import Library
from undertow.store.listing import find_runs
from undertow.views.verdict import Glance


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of hostile run in it, and a good one."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "good")
    for number, harm in enumerate(HOSTILE.values()):
        harm(make_run(root / f"bad-{number}"))
    return root


def test_the_list_shows_the_good_run_beside_all_bad_ones(root: Path) -> None:
    ended = limited.undertow("runs", root, "--json")
    assert ended.code == 0, ended.err
    listed = {Path(one["folder"]).name: one for one in msgspec.json.decode(ended.out)}
    assert len(listed) == len(HOSTILE) + 1
    assert listed["good"]["steps"] == 5
    assert listed["good"]["problem"] is None
    assert ended.memory < limited.GIGABYTE
    ended = limited.undertow("runs", root)
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out


def test_the_list_of_the_dashboard_shows_them(root: Path) -> None:
    listed = Library(root).runs()
    assert len(listed) == len(find_runs(root)) == len(HOSTILE) + 1
    assert all(isinstance(one.glance, Glance) and msgspec.json.encode(one.document()) for one in listed)


EVERY_COMMAND = """
import sys, time
from pathlib import Path
from undertow.cli import main

good, out = sys.argv[1] + "/good", sys.argv[2] + "/frames.json"
for folder in sorted(Path(sys.argv[1]).glob("bad-*")):
    for command, *more in (["report"], ["check"], ["compare", good], ["export", "--to=json", "-o", out], ["weights"]):
        began = time.process_time()
        code = main([command, str(folder), *more])
        print(f"\\n{folder.name} {command}: {code} after {time.process_time() - began:.0f} s", file=sys.stderr)
        assert code in (0, 1, 3), code
        assert time.process_time() - began < 10
"""


def test_every_command_answers_in_words(root: Path, tmp_path: Path) -> None:
    ended = limited.python("-c", EVERY_COMMAND, root, tmp_path, patience=400)
    assert ended.code == 0, ended.err
    assert "internal error" not in ended.err
    assert "\x1b" not in ended.out + ended.err
    assert ended.memory < limited.GIGABYTE

"""Every reader on spoiled files: it reads something, or says in words that it cannot. Nothing else may happen.

A few examples each in `make test`; `make fuzz MINUTES=10` goes on with other ones.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.checkpoints.saving import values_of
from tests.crash.test_damage import read_all_of
from tests.fuzz import corpus

from undertow.checkpoints import open_checkpoint
from undertow.checkpoints.pickle_bounds import PickleBombError, check_pickle
from undertow.detect.engine import Engine
from undertow.errors import UndertowError
from undertow.run import open_run
from undertow.schema.addresses import address_of
from undertow.settings import Settings
from undertow.store.listing import find_runs
from undertow.store.reader import RunReader

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
SECONDS = 10.0  # of the processor, for one file of a few kilobytes

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    began = time.process_time()
    with contextlib.suppress(UndertowError):
        yield
    assert time.process_time() - began < SECONDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)


RUN_FILES = [
    "run.json",
    "layers.json",
    "events.jsonl",
    "segments/scalars-00000.arrows",
    "segments/gradient-00000.arrows",
]


@pytest.mark.parametrize("name", [*RUN_FILES, "zoom/gradient-x16-00000.arrows"])
def test_files_of_a_run(folder: Path, name: str) -> None:
    run = folder / name.replace("/", "-") / "run"

    @fuzz
    @given(data=corpus.spoiled(corpus.run_files()[name]))
    def check(data: bytes) -> None:
        write_all(run, {**corpus.run_files(), name: data})
        assert len(find_runs(run.parent)) == 1
        with in_words():
            read_all_of(RunReader(run))

    check()


@pytest.mark.parametrize("name", ["run.json", "layers.json", "events.jsonl"])
def test_diagnoses_of_spoiled_documents(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "strict", False)  # as for users: a rule that stumbles is named, and the others go on
    run = folder / f"diagnosed-{name}" / "run"

    @fuzz
    @given(data=corpus.spoiled(corpus.run_files()[name]))
    def check(data: bytes) -> None:
        write_all(run, {**corpus.run_files(), name: data})
        with in_words():
            open_run(run).diagnose()

    check()


def checkpoint_test(folder: Path, good: tuple[bytes, ...], files: Callable[[bytes], dict[str, bytes]]) -> None:
    @fuzz
    @given(data=corpus.spoiled(*good))
    def check(data: bytes) -> None:
        written = files(data)
        write_all(folder, written)
        with in_words():
            values_of(open_checkpoint(folder / next(iter(written))))

    check()


def test_safetensors(folder: Path) -> None:
    checkpoint_test(folder / "safetensors", (corpus.safetensors(),), lambda data: {"a.safetensors": data})


def test_torch_files(folder: Path) -> None:
    checkpoint_test(folder / "torch", corpus.torch_files(), lambda data: {"a.pt": data})


def test_distributed_metadata(folder: Path) -> None:
    good = corpus.distributed()
    checkpoint_test(
        folder / "metadata", corpus.pickles(), lambda data: {".metadata": data, **without(good, ".metadata")}
    )


def test_distributed_parts(folder: Path) -> None:
    good = corpus.distributed()
    part = min(name for name in good if name.endswith(".distcp"))
    checkpoint_test(folder / "parts", (good[part],), lambda data: {part: data, **without(good, part)})


def without(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {one: data for one, data in files.items() if one != name}


@fuzz
@given(data=corpus.spoiled(*corpus.pickles()))
def test_walks_through_pickles(data: bytes) -> None:
    with contextlib.suppress(PickleBombError):
        assert 0 < check_pickle(data) <= len(data)


def test_pyproject(folder: Path) -> None:
    place = folder / "project"

    @fuzz
    @given(data=corpus.spoiled(corpus.PYPROJECT))
    def check(data: bytes) -> None:
        write_all(place, {"pyproject.toml": data})
        before = Path.cwd()
        os.chdir(place)
        try:
            with in_words():
                Settings.resolve()
        finally:
            os.chdir(before)

    check()


@fuzz
@given(text=corpus.spoiled(*corpus.ADDRESSES).map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text())
def test_addresses(text: str) -> None:
    found = address_of(text)
    assert found is None or address_of(found) == found

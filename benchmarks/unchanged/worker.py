"""Runs the programs of one group, every training in a process of its own that is forked after the imports.

Each program is trained three times from the same seeds: plain, plain once more, and watched. Two processes that were
forked from one share everything that could tell them apart, even addresses and the order of sets.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.unchanged.fingerprint import Fingerprint
from benchmarks.unchanged.program import Group, Program

LONGEST = 300  # seconds of one training, on a machine that may be busy
PLAIN, AGAIN, WATCHED = ("plain", "plain again", "watched")


def group_of(name: str) -> Group:
    return importlib.import_module(f"benchmarks.unchanged.programs.{name}").GROUP


def trials(programs: list[Program]) -> Iterator[dict[str, Any]]:
    """Of every program, what its three trainings left behind; or why its packages cannot be used."""
    import torch._dynamo  # every optimizer does, and it takes longer than our trainings

    torch.set_num_threads(1)
    mend_torchvision()
    with tempfile.TemporaryDirectory(prefix="unchanged-") as temporary:
        folder = Path(temporary) / "work"
        reasons = {program.name: _missing(program) for program in programs}  # all imports first: some change settings
        found: list[tuple[Program, dict[str, Any]]] = []
        for program in programs:
            if reasons[program.name]:
                yield {"name": program.name, "missing": reasons[program.name]}
                continue
            found.append((program, {mode: train_in_child(program, mode, folder) for mode in (PLAIN, AGAIN)}))
            print(f"{program.name}: trained plain", file=sys.stderr, flush=True)
        import undertow  # only now: no plain process has anything of it
        import undertow.recording.live_watch
        import undertow.run  # noqa: F401

        for program, plain in found:
            watched = train_in_child(program, WATCHED, folder)
            yield {"name": program.name, "steps": program.steps, **plain, WATCHED: watched}


def _missing(program: Program) -> str:
    """Why its packages cannot be used here; they are imported for all that is forked from now on."""
    for module in program.needs:
        try:
            importlib.import_module(module)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return f"{module} cannot be imported: {reason}"
    if program.prepare is not None:
        program.prepare()
    return ""


def train_in_child(program: Program, mode: str, folder: Path) -> dict[str, Any]:
    """The hashes of everything it left, and how it ended. The folder is the same for all, as paths may be printed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.perf_counter()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            _be_the_child(program, mode, folder)
        finally:
            os._exit(70)  # never back into the loop of the parent
    _, status = os.waitpid(child, 0)
    file = folder / "result.json"
    result = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    result["parts"]["exit status"] = os.waitstatus_to_exitcode(status)
    for stream in ("stdout", "stderr"):
        result["parts"][stream] = (folder / stream).read_text(errors="replace")
    return {**result, "seconds": time.perf_counter() - began}


def _be_the_child(program: Program, mode: str, folder: Path) -> None:
    signal.alarm(LONGEST)
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / stream, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    # Results of some operations depend on where in memory their arrays begin, which nobody promises.
    elsewhere = [torch.empty(size) for size in range(1, 4000, 7)] if mode == AGAIN else []
    del elsewhere[::2]
    watch: Any = None
    if mode == WATCHED:
        import undertow

        watch = undertow.watch(every=1, activations=True, run_dir=folder.parent / "run", quiet=True)
    returned, code = None, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            returned = program.train()
        except Exception:
            traceback.print_exc()
            code = 1
    result: dict[str, Any] = {}
    if watch is not None:
        watch.close()
        result = {"recorded": len(watch.run.steps), "status": str(watch.run.status)}
        shutil.rmtree(folder.parent / "run")
    fingerprint = Fingerprint()
    fingerprint.add("returned", returned)
    fingerprint.add_surroundings()
    result["parts"] = fingerprint.hashes()
    result["parts"]["warnings"] = [f"{w.filename}:{w.lineno}: {w.category.__name__}: {w.message}" for w in caught]
    (folder / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def mend_torchvision() -> None:
    """Let torchvision be imported where its compiled operations cannot be loaded: its models need none of them."""
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # what it defines goes with it


_kept: list[Any] = []


if __name__ == "__main__":
    chosen = set(sys.argv[2:])
    for trial in trials([program for program in group_of(sys.argv[1]).programs if program.name in chosen]):
        print(json.dumps(trial), flush=True)

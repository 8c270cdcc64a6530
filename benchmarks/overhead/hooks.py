"""Where the cost of a step goes on the training's own thread: microseconds and Python calls of every tap.

`python -m benchmarks.overhead.hooks [--tensors 6,77,148,2000] [--device cuda] [--beside FOLDER] [--rounds 3]`

A model of that many small tensors trains while every fourth step is measured; what each tap takes is noted around the
one place that all of them go through, for steps that are measured and for those between. Small tensors: what is left
is host time. `--beside` names a second checkout: processes of both take turns, and medians over them are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT, SOURCE

EVERY = 4
WARM_UP, STEPS, COUNTED = 80, 240, 16
MODULES = 48
Figures = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", default="6,77,148,2000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--beside", type=Path, help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one of these processes
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.tensors.split(",")]
    if arguments.here:
        print(json.dumps(_measure(counts, arguments.device)))
        return 0
    trees = {"this": ROOT} | ({} if arguments.beside is None else {"other": arguments.beside.resolve()})
    found: dict[str, list[dict[str, Figures]]] = {name: [] for name in trees}
    for _ in range(arguments.rounds):
        for name, tree in trees.items():
            found[name].append(_process(tree, arguments))
    _print(found)
    return 0


def _process(tree: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    """This very file, with the library of that checkout."""
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, __file__, "--here", "--tensors", arguments.tensors]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{SOURCE}:{ROOT}", "UNDERTOW_QUIET": "1"}
    said = subprocess.run(
        [*command, "--device", arguments.device], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(said.stdout.splitlines()[-1])


def _print(found: dict[str, list[dict[str, Figures]]]) -> None:
    rounds = found["this"]
    print(f"{'':34} {'µs':>9}" + (f" {'other':>9} {'this / other':>13}" if "other" in found else ""))
    for title in rounds[0]:
        print(title)
        for name in rounds[0][title]:
            mine = median(one[title][name] for one in rounds)
            line = f"  {name:32} {mine:9.1f}"
            if "other" in found:
                other = median(one[title].get(name, float("nan")) for one in found["other"])
                line += f" {other:9.1f} {mine / other if other else float('nan'):13.2f}"
            print(line)


def _measure(counts: list[int], device: str) -> dict[str, Figures]:
    import torch

    torch.set_num_threads(1)
    figures = {f"{count} tensors": _of_tensors(count, device) for count in counts}
    return {**figures, f"{MODULES} modules, all sampled": _of_modules(device)}


class _Taps:
    """Notes what every tap takes."""

    def __init__(self) -> None:
        from undertow.probe import taps

        self.now: Figures = {}
        self.calls = 0
        self.counts = False
        self._original = taps._tell
        taps._tell = self._tell
        self._taps = taps

    def _tell(self, installation: int, event: str, *arguments: Any) -> None:
        if self.counts:
            sys.setprofile(self._count)
        began = time.perf_counter()
        self._original(installation, event, *arguments)
        self.now[event] = self.now.get(event, 0.0) + 1e6 * (time.perf_counter() - began)
        sys.setprofile(None)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")

    def close(self) -> None:
        self._taps._tell = self._original


def _of_tensors(count: int, device: str) -> Figures:
    import torch

    import undertow

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([torch.randn(16) for _ in range(count)])

    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    taps = _Taps()
    steps: dict[bool, list[Figures]] = {True: [], False: []}
    calls: dict[bool, list[int]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory(prefix="hooks-") as folder,
        undertow.watch(model, optimizer, run_dir=f"{folder}/run", quiet=True, every=EVERY, activations=False) as watch,
    ):
        for step in range(WARM_UP + STEPS + COUNTED):
            loss = torch.cat(list(model.parts)).square().mean()
            optimizer.zero_grad()
            taps.now, taps.calls, taps.counts = {}, 0, step >= WARM_UP + STEPS
            loss.backward()
            is_measured = watch._recorder._state.plan.gradient
            optimizer.step()
            if taps.counts:
                calls[is_measured].append(taps.calls)
            elif step >= WARM_UP:
                steps[is_measured].append(taps.now)
    taps.close()
    figures: Figures = {}
    for is_measured, name in ((True, "measured"), (False, "between")):
        some = steps[is_measured]
        figures[f"{name}, all taps"] = median(sum(one.values()) for one in some)
        for event in some[0]:
            figures[f"{name}, {event}"] = median(one.get(event, 0.0) for one in some)
        figures[f"{name}, Python calls"] = median(calls[is_measured])
    return figures


def _of_modules(device: str) -> Figures:
    """What the clocks of the rotation say of a whole sample, and what a step takes longer."""
    import torch

    import undertow

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(MODULES)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, 8, device=device)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory(prefix="hooks-") as folder,
        undertow.watch(model, optimizer, run_dir=f"{folder}/run", quiet=True, every=1000, activations=2) as watch,
    ):
        for step in range(WARM_UP + STEPS):
            if device != "cpu":
                torch.cuda.synchronize()
            began = time.perf_counter()
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            spent = time.perf_counter() - began
            is_sampled = watch._recorder._state.plan.activation
            optimizer.step()
            if step >= WARM_UP:
                seconds[is_sampled].append(spent)
        believed = watch._recorder._sampling._rotation.seconds
    longer = median(seconds[True]) - median(seconds[False])
    return {"a module, by the clock": 1e6 * longer / MODULES, "a module, as believed": 1e6 * believed / MODULES}


if __name__ == "__main__":
    sys.exit(main())

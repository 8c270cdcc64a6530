"""What watching costs: Undertow beside other tools, on the same trainings, in one process.

`python -m benchmarks.overhead [--quick] [--models mlp,cnn,gpt] [--only default,every,wandb]`

Blocks of steps with each tool take turns, so that whatever else the machine does falls on all alike.
A block's time is its mean step (a tool that works only now and then must not hide between medians);
each is compared with a plain block right before it, and the median over rounds is printed.
The real packages run in a virtual environment of the benchmark's own, W&B offline, all files in a
temporary folder. Closing and flushing after a block is not timed, nor are a block's first steps: in those Undertow's
default looks closer, to learn what looking costs.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.environment import BESIDE_OTHERS

LONGEST = 8.0  # seconds of a block: slow tools need no more steps than
FEWEST = 8
Pair = tuple[float, float]  # seconds of a step: plain, and with a tool


def main() -> int:
    arguments = _arguments()
    if not BESIDE_OTHERS.is_this:
        BESIDE_OTHERS.prepare()
        return BESIDE_OTHERS.call("benchmarks.overhead", *sys.argv[1:], UNDERTOW_QUIET="1")
    return _measure(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of seven")
    parser.add_argument("--models", default="mlp,cnn,gpt", help="which trainings, separated by commas")
    parser.add_argument("--only", default="", help="which tools besides plain and every, separated by commas")
    parser.add_argument("--rounds", type=int, default=0, help="how many times each tool has its turn")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; torch's own default otherwise")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    import torch

    from benchmarks.overhead.models import WORKLOADS
    from benchmarks.overhead.tools import TOOLS
    from undertow.measure.kernels import choose

    only = [name for name in arguments.only.split(",") if name] or list(TOOLS)
    chosen = [name for name in TOOLS if name in {"plain", "every", *only}]
    unknown = {*only, *arguments.models.split(",")} - {*TOOLS, *WORKLOADS}
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; tools {', '.join(TOOLS)}; models {', '.join(WORKLOADS)}")
        return 2
    rounds = arguments.rounds or (3 if arguments.quick else 7)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), kernel {choose('cpu').name}, {rounds} rounds"
    )
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > 0.5 * cores:
        print(f"warning: this machine is busy (load {busy:.1f} on {cores} cores); the figures below are mostly noise")
    for model_name in arguments.models.split(","):
        with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
            os.environ["WANDB_DIR"] = folder
            torch.manual_seed(0)
            workload = WORKLOADS[model_name]()
            tools = {name: TOOLS[name](Path(folder)) for name in chosen}
            pairs, failures = _take_turns(workload, tools, rounds * workload.repeats)
            _print_table(workload, tools, pairs, failures)
    return 0


def _take_turns(workload, tools, rounds: int) -> tuple[dict[str, list[Pair]], dict[str, str]]:
    """Of each tool, plain blocks and its own right behind them."""
    pairs: dict[str, list[Pair]] = {name: [] for name in tools}
    failures: dict[str, str] = {}
    plain = tools["plain"]
    for number in range(rounds):
        # Another order each time: nobody always runs in the wake of the same neighbour.
        names = [name for name in tools if name != "plain" and name not in failures]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            before = _time_block(workload, plain)
            try:
                pairs[name].append((before, _time_block(workload, tools[name])))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            for parameter in workload.model.parameters():
                parameter.grad = None
        latest = {name: measured[-1] for name, measured in pairs.items() if measured}
        said = ", ".join(f"{name} {1e3 * (own - before):+.2f}" for name, (before, own) in latest.items())
        print(f"round {number + 1} of {rounds}, ms: {said}", file=sys.stderr, flush=True)
    return pairs, failures


def _time_block(workload, tool) -> float:
    model, optimizer = workload.model, workload.optimizer
    gc.collect()
    tool.attach(model, optimizer)
    try:
        began, step = time.perf_counter(), 0
        while step < workload.warm + tool.settling or time.perf_counter() - began < tool.seconds:
            _step(workload, tool, step)
            step += 1
        start = time.perf_counter()
        for number in range(step, step + workload.timed):
            _step(workload, tool, number)
            if time.perf_counter() - start > LONGEST and number - step >= FEWEST:
                break
        return (time.perf_counter() - start) / (number + 1 - step)
    finally:
        tool.detach()


def _step(workload, tool, number: int) -> None:
    loss = workload.loss()
    workload.optimizer.zero_grad()
    loss.backward()
    tool.after_backward(number, loss)
    workload.optimizer.step()
    tool.after_step(number, loss)


def _print_table(workload, tools, pairs: dict[str, list[Pair]], failures: dict[str, str]) -> None:
    count = sum(p.numel() for p in workload.model.parameters())
    tensors = sum(1 for _ in workload.model.parameters())
    plain = [before for measured in pairs.values() for before, _ in measured]
    added = {name: median(own - before for before, own in measured) for name, measured in pairs.items() if measured}
    print(f"\n{workload.name}: {count:,} parameters in {tensors} tensors, plain step {1e3 * median(plain):.2f} ms")
    print(f"{'':36} {'step ms':>9} {'added ms':>9} {'over plain':>11} {'added / Undertow every step':>28}")
    print(f"{'plain':36} {1e3 * median(plain):9.3f}")
    every = added.get("every")
    for name, tool in tools.items():
        if name in failures:
            print(f"{tool.name:36} not measured: {failures[name]}")
        elif name != "plain":
            ratio = median(own / before for before, own in pairs[name])
            beside = f"{added[name] / every:.1f}×" if every and every > 0 and name != "every" else ""
            step = 1e3 * median(own for _, own in pairs[name])
            print(f"{tool.name:36} {step:9.3f} {1e3 * added[name]:9.3f} {ratio:10.3f}× {beside:>28}")


if __name__ == "__main__":
    sys.exit(main())

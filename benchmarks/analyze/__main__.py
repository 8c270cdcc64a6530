"""What the whole analysis of a run costs: flow and dynamics of many layers over many steps.

    python -m benchmarks.analyze [--layers 1000] [--steps 10000]

Bars: 1,000 layers × 10,000 steps within 10 s and 2 GB on two cores; processor time grows no faster than layers ×
steps (slope of its log against log size at most 1.15 over a factor of 16). Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks import ROOT
from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import LayerSeries
from undertow.analyze.topology import topology_of
from undertow.components.enhanced_analysis import enhanced_analysis
from undertow.components.gradient_flow import gradient_flow

TIME_BAR = 10.0
MEMORY_BAR = 2e9
SLOPE_BAR = 1.15
ROUNDS = 3


def make(layers: int, steps: int) -> tuple[LayerSeries, TrainingSeries, list[tuple[str, str]]]:
    """A residual network with common minibatch noise, a few ill layers, a loss and updates."""
    random = np.random.default_rng(0)
    values = np.exp(0.3 * random.normal(size=(steps, layers)) + 0.2 * random.normal(size=(steps, 1)))
    values[:, ::50] *= 1e-9
    values[steps // 2 :, 1::50] = 0
    values[:, 2::50] *= 1e4
    values[-1, 3::50] = np.nan
    names = [f"blocks.{layer // 4}.{'qkvo'[layer % 4]}.weight" for layer in range(layers)]
    recorded = np.ones(values.shape, bool)
    series = LayerSeries.of(names, np.arange(steps), values, recorded, [4096] * layers)
    loss = 2 * np.exp(-np.arange(steps) / (steps / 4)) + 0.05 * random.normal(size=steps)
    training = TrainingSeries(loss=loss, learning_rate=np.linspace(1e-3, 1e-4, steps), update_ratio=values * 1e-3)
    edges = [(names[place], names[place + skip]) for skip in (1, 4) for place in range(layers - skip)]
    return series, training, edges


def analyse(layers: int, steps: int) -> tuple[float, float]:
    """Seconds of the clock, and of processors: the latter say more where other programs run as well."""
    series, training, edges = make(layers, steps)
    began, spent = time.perf_counter(), time.process_time()
    topology = topology_of(edges, series.names)
    flow = gradient_flow(series, topology=topology, current_step=steps)
    enhanced = enhanced_analysis(series, training, topology=topology)
    took, spent = time.perf_counter() - began, time.process_time() - spent
    assert len(flow.layer_flows) == len(enhanced.layer_details) == layers
    return took, spent


def in_own_process(layers: int, steps: int) -> tuple[float, float, float]:
    """Seconds of the analysis, and the peak memory of a process that makes the data and analyses it."""
    command = [sys.executable, "-m", "benchmarks.analyze", "--one", str(layers), str(steps)]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return float(out[0]), float(out[1]), float(out[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(*analyse(*arguments.one), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return 0
    layers, steps = arguments.layers, arguments.steps
    sizes = {
        f"{layers} × {steps}": (layers, steps),
        f"{layers // 4} × {steps}": (layers // 4, steps),
        f"{layers} × {steps // 4}": (layers, steps // 4),
        f"{layers // 4} × {steps // 4}": (layers // 4, steps // 4),
    }
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sizes}
    for _ in range(ROUNDS):  # in turn, so that a busy moment does not hit one size only
        for name, size in sizes.items():
            measured[name].append(in_own_process(*size))
    seconds = {name: statistics.median(took for took, _, _ in samples) for name, samples in measured.items()}
    processor = {name: statistics.median(spent for _, spent, _ in samples) for name, samples in measured.items()}
    memory = max(peak for _, _, peak in measured[f"{layers} × {steps}"])
    for name, took in seconds.items():
        print(f"{name:>14} (layers × steps): {took:6.2f} s, {processor[name]:6.2f} s of processors")
    names = list(sizes)
    whole = np.log(processor[names[0]] / processor[names[3]]) / np.log(16)
    by_layers = np.log(processor[names[0]] / processor[names[1]]) / np.log(4)
    by_steps = np.log(processor[names[0]] / processor[names[2]]) / np.log(4)
    slopes = f"{whole:.2f} over layers × steps, {by_layers:.2f} over layers, {by_steps:.2f} over steps"
    print(f"slope of log processor time: {slopes}")
    print(f"peak memory: {memory / 1e9:.2f} GB, data included; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    failures = [
        text
        for missed, text in (
            (seconds[names[0]] > TIME_BAR, f"time is above {TIME_BAR:.0f} s"),
            (memory > MEMORY_BAR, f"memory is above {MEMORY_BAR / 1e9:.0f} GB"),
            (whole > SLOPE_BAR, f"slope is above {SLOPE_BAR}"),
        )
        if missed
    ]
    busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
    note = " (other programs kept this machine busy: see the processor time)" if failures and busy else ""
    print(("; ".join(failures) or "all bars met") + note)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

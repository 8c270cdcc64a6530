"""What watching costs on a GPU: the kernel against plain reads of memory, and whole training steps.

    python -m benchmarks.gpu [--kernel-only] [--models small,large] [--rounds 5] [--without-tests] [--light]

Everything is measured in one process and one run. The kernel is timed by the device's own clock, with work queued
ahead so that the host's launches do not count; steps by the wall clock, in blocks that take turns. Undertow is timed
when it has settled: not in its first sixteen steps, at which it looks more closely, nor while the process that writes
is started, for which it is given four seconds. First the battery of the kernels and the tests of capture run on this
GPU.
Bars, marked below with ✓ or ✗: 70 % of the read rate for moments and sketch, 50 % with exponents, everything over
GPT-2-small's tensors in less time than the norms alone take, 1 % of a step and of its memory with every step measured.
Exit status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import gc
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks import ROOT
from benchmarks.gpu.models import Training, large, small, small_tensors
from benchmarks.gpu.tools import TOOLS
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.triton_kernel import TritonKernel

MODELS: dict[str, Callable[[], Training]] = {"small": small, "large": large}
_WARM_UP = 15.0  # seconds: a cold GPU runs at a higher clock, and the first blocks would be those without Undertow
MOMENTS_AND_SKETCH = Want.MOMENTS | Want.SKETCH
missed: list[str] = []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel-only", action="store_true")
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-tests", action="store_true")
    parser.add_argument("--light", action="store_true", help="only tools that leave a step about as long as it is")
    arguments = parser.parse_args()
    if arguments.light:
        for name in [name for name, tool in TOOLS.items() if not tool.light]:
            del TOOLS[name]
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device")
        return 2
    import triton

    torch.set_float32_matmul_precision("high")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {torch.cuda.get_device_name()}, driver and CUDA {torch.version.cuda}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}\n")
    if not arguments.without_tests:
        run_tests()
    measure_kernel()
    if not arguments.kernel_only:
        for name in arguments.models.split(","):
            measure_training(MODELS[name](), arguments.rounds)
            gc.collect()
            torch.cuda.empty_cache()
    print("\nall bars are met" if not missed else f"\nmissed: {'; '.join(missed)}")
    return int(bool(missed))


def run_tests() -> None:
    """The kernel against the float64 reference, and capture without a wait, on this device; not the interpreter."""
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-o", "filterwarnings=default"]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider", "-k", "triton or cuda"]
    done = subprocess.run(
        [*command, "--ignore=tests/battery/test_kernel_triton.py", "tests/battery", "tests/probe/test_cuda.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    print(f"battery and capture tests on this device: {lines[-1] if lines else done.stderr.strip()}")
    judge("tests", done.returncode == 0)
    if done.returncode:
        print("\n".join(lines[-40:]))


def judge(name: str, met: bool) -> str:
    if not met:
        missed.append(name)
    return "✓" if met else "✗"


def device_time(work: Callable[[], object], rounds: int = 15) -> float:
    """Milliseconds of the device, median."""
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(5_000_000)  # the host runs ahead meanwhile
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def measure_kernel() -> None:
    kernel = TritonKernel()
    print("\none tensor of 1e9 elements            ms    TB/s   of vector_norm's rate")
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [torch.empty(1_000_000_000, device="cuda", dtype=dtype).normal_()]
        size = tensors[0].nbytes / 1e9
        norm = device_time(lambda tensors=tensors: torch.linalg.vector_norm(tensors[0]))
        print(f"  {dtype!s:15} vector_norm    {norm:8.3f} {size / norm:7.2f}")
        bars = {Want.MOMENTS: None, MOMENTS_AND_SKETCH: 0.70, Want.ALL: 0.50}
        for want, bar in bars.items():
            spent = device_time(lambda tensors=tensors, want=want: kernel.measure_on_device(tensors, want))
            name = {1: "moments", 5: "and sketch", 7: "everything"}[int(want)]
            verdict = ""
            if bar is not None and dtype == torch.float32:
                verdict = f"  bar {bar:.0%} {judge(f'{name} on 1e9 elements', norm / spent >= bar)}"
            print(f"  {dtype!s:15} {name:14} {spent:8.3f} {size / spent:7.2f} {norm / spent:8.0%}{verdict}")
        del tensors
        torch.cuda.empty_cache()
    tensors = small_tensors()
    elements = sum(tensor.numel() for tensor in tensors)
    print(f"\nGPT-2-small's {len(tensors)} tensors, {elements:,} float32 elements")
    norms = device_time(lambda: torch._foreach_norm(tensors))
    print(f"  torch._foreach_norm     {norms:8.3f} ms")
    for want, name in ((MOMENTS_AND_SKETCH, "moments and sketch"), (Want.ALL, "everything")):
        spent = device_time(lambda want=want: kernel.measure_on_device(tensors, want))
        verdict = "" if want != Want.ALL else judge("everything over GPT-2-small's tensors", spent < norms)
        print(f"  {name:23} {spent:8.3f} ms {spent / norms:6.2f} × {verdict}")
    begin = time.perf_counter()
    for _ in range(20):
        kernel.measure_on_device(tensors)
    print(f"  host time of a call     {(time.perf_counter() - begin) / 20 * 1e3:8.3f} ms")
    torch.cuda.synchronize()
    assert not kernel.broken


def measure_training(training: Training, rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in TOOLS}
    peaks: dict[str, int] = {}
    steps = {name: (training.steps if tool.light else max(2, training.steps // 5)) for name, tool in TOOLS.items()}
    warm = time.perf_counter() + _WARM_UP
    for _ in range(6):  # compiles
        training.step()
    while time.perf_counter() < warm:
        training.step()
        torch.cuda.synchronize()
    for number in range(rounds):
        names = list(TOOLS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if not TOOLS[name].light and number > 1:
                continue
            with attached(name, training.model, training.optimizer) as tool:
                settled, step = time.perf_counter() + tool.settles, 0
                while step < tool.warm_up or time.perf_counter() < settled:
                    training.step(tool.after_backward, tool.after_step)
                    step += 1
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                for _ in range(steps[name]):
                    training.step(tool.after_backward, tool.after_step)
                torch.cuda.synchronize()
                times[name].append((time.perf_counter() - begin) / steps[name])
                peaks[name] = torch.cuda.max_memory_allocated()
                print(f"  round {number + 1}, {name}: {1e3 * times[name][-1]:.2f} ms", file=sys.stderr, flush=True)
    parameters = list(training.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    print(f"\n{training.name}: {count:,} parameters in {len(parameters)} tensors")
    print(f"{'':44} {'step ms':>9} {'added ms':>9} {'over plain':>11} {'peak GB':>9} {'over plain':>11}")
    plain, peak = median(times["plain"]), peaks["plain"]
    for name, tool in TOOLS.items():
        step, memory = median(times[name]), peaks[name]
        verdict = ""
        if name == "every":
            verdict = judge(f"step of {training.name}", step / plain <= 1.01)
            verdict += judge(f"memory of {training.name}", memory / peak <= 1.01)
        print(
            f"{tool.name:44} {1e3 * step:9.2f} {1e3 * (step - plain):9.2f} {step / plain - 1:+11.2%} "
            f"{memory / 1e9:9.2f} {memory / peak - 1:+11.2%} {verdict}"
        )


@contextmanager
def attached(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator:
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        tool = TOOLS[name]
        tool.attach(model, optimizer, Path(folder))
        try:
            yield tool
        finally:
            tool.detach()


if __name__ == "__main__":
    sys.exit(main())

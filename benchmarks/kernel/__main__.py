"""The cost of measuring: every statistic, the histogram of exponents and the sketch, against one norm.

Everything runs interleaved in one process over the same 70 million float32 numbers; medians and ratios are
printed. The bar: the native kernel takes at most four times as long as one `torch.linalg.vector_norm` pass over
the list on the same number of threads. Exit status 1 when it does not.

    make bench-kernel
    python -m benchmarks.kernel --rounds 9 --shape transformer
"""

from __future__ import annotations

import argparse
import statistics as summary
import sys
import time
from collections.abc import Callable, Sequence

import torch

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.native import NativeKernel
from undertow.measure.kernels.torch_portable import TorchKernel

BAR = 4.0
TOTAL = 70_000_000

Tensors = list[torch.Tensor]


def equal_tensors() -> Tensors:
    return [torch.randn(TOTAL // 70) * 1e-3 for _ in range(70)]


def transformer_tensors() -> Tensors:
    """Blocks of width 512 with their biases and norms, then embeddings up to the total."""
    width, tensors = 512, []
    for _ in range(12):
        for shape in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
            tensors += [torch.randn(shape) * 0.02, torch.randn(shape[0]) * 1e-3]
        tensors += [1.0 + 0.01 * torch.randn(width), torch.randn(width) * 1e-3]
    rest = TOTAL - sum(tensor.numel() for tensor in tensors)
    return [torch.randn(rest // width, width) * 0.02, *tensors]


SHAPES: dict[str, Callable[[], Tensors]] = {"equal": equal_tensors, "transformer": transformer_tensors}


def per_operation_loop(tensors: Sequence[torch.Tensor]) -> None:
    """The statistics as people write them: one torch operation each, without sketch or exponents."""
    for x in tensors:
        mean, std = x.mean(), x.std()
        z = (x - mean) / std
        _ = torch.linalg.vector_norm(x), x.abs().mean(), x.min(), x.max(), x.abs().max()
        _ = (z**3).mean(), (z**4).mean(), (x == 0).sum(), (~torch.isfinite(x)).sum()


def time_interleaved(work: dict[str, Callable[[], object]], slow: set[str], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(rounds + 1):
        for name, do in work.items():
            if name in slow and round_number not in (0, 1):
                continue
            start = time.perf_counter()
            do()
            if round_number > 0:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: summary.median(values) for name, values in times.items()}


def compare(tensors: Tensors, threads: int, rounds: int) -> float:
    native, portable = NativeKernel(), TorchKernel()
    torch.set_num_threads(threads)
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    slow = {"torch portable, everything", "one torch operation per statistic"}
    medians = time_interleaved(
        {
            "vector_norm, tensor by tensor": lambda: [torch.linalg.vector_norm(tensor) for tensor in tensors],
            "vector_norm of one joined tensor": lambda: torch.linalg.vector_norm(whole),
            "native, everything": lambda: native.measure(tensors),
            "native, moments": lambda: native.measure(tensors, Want.MOMENTS),
            "native, moments and exponents": lambda: native.measure(tensors, Want.MOMENTS | Want.EXPONENTS),
            "native, sketch": lambda: native.measure(tensors, Want.SKETCH),
            "torch portable, everything": lambda: portable.measure(tensors),
            "one torch operation per statistic": lambda: per_operation_loop(tensors),
        },
        slow,
        rounds,
    )
    norm = medians["vector_norm, tensor by tensor"]
    print(
        f"\n{threads} thread{'s' * (threads > 1)}, {len(tensors)} tensors, {sum(t.numel() for t in tensors):,} elements"
    )
    for name, seconds in medians.items():
        print(f"  {name:<36} {seconds * 1e3:9.1f} ms  {seconds / norm:7.2f} ×")
    return medians["native, everything"] / norm


def measure_calls(rounds: int) -> None:
    """The price of a call: many tensors with next to nothing in them."""
    torch.set_num_threads(1)
    native = NativeKernel()
    print("\n148 small tensors, one call")
    for size in (1, 64, 1000):
        tensors = [torch.randn(size) for _ in range(148)]
        medians = time_interleaved({"": lambda tensors=tensors: native.measure(tensors)}, set(), 50 * rounds)
        print(f"  {size:5} elements each {medians[''] * 1e6:9.0f} µs")


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of measuring, against one vector_norm pass.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="which list of tensors (default: all)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    ratios: list[float] = []
    default = torch.get_num_threads()
    for shape in arguments.shape or SHAPES:
        tensors = SHAPES[shape]()
        ratios += [compare(tensors, threads, arguments.rounds) for threads in sorted({default, 1}, reverse=True)]
    measure_calls(arguments.rounds)
    print(f"\nworst ratio of the native kernel: {max(ratios):.2f} × (bar: {BAR:.0f} ×)")
    return int(max(ratios) > BAR)


if __name__ == "__main__":
    sys.exit(main())

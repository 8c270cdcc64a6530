"""The battery of the Triton kernel under Triton's interpreter, and what happens where Triton cannot be used.

A process chooses the interpreter before it imports Triton, so the battery runs in one of its own. The interpreter is
a thousand times slower than a GPU: the tests with hundreds of tensors are left to `benchmarks.gpu`.
"""

import builtins
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from undertow.measure.kernels import choose

ROOT = Path(__file__).parents[2]
TRITON = importlib.util.find_spec("triton") is not None
QUICK = [
    "test_kernel_shapes.py::test_every_size[triton-torch.bfloat16]",
    "test_kernel_shapes.py::test_every_selection_gives_the_same",
    "test_kernel_shapes.py::test_layouts_are_read_in_logical_order",
    "test_kernel_shapes.py::test_no_tensors",
    "test_kernel_shapes.py::test_other_kinds_of_tensor",
    "test_kernel_shapes.py::test_sparse_gradients_count_as_dense",
    "test_kernel_shapes.py::test_a_tensor_without_fractions_is_refused",
    "test_kernel_shapes.py::test_a_tensor_without_values_is_refused",
    "test_kernel_shapes.py::test_measuring_changes_nothing",
    "test_kernel_outputs.py",
    "test_kernel_parts.py::test_parts_add_up_to_the_whole_triton[torch.bfloat16]",
    "test_kernel_parts.py::test_a_part_of_many_rows_begins_anywhere_triton",
    "test_kernel_parts.py::test_readings_of_parts_have_the_sketches_of_the_whole_triton",
    "test_kernel_values.py::test_special_values_in_a_long_tensor[triton-1e-42]",
    "test_kernel_values.py::test_infinities_of_both_signs_in_one_bucket",
    "test_kernel_values.py::test_every_finite_half",
    "test_kernel_values.py::test_offsets_far_larger_than_the_spread",
    "test_kernel_values.py::test_awkward_distributions",
    "test_kernel_values.py::test_constants_have_no_spread",
    "test_kernel_values.py::test_float64_beyond_the_powers_that_float64_holds",
    "test_kernel_values.py::test_denormals_survive_flush_to_zero",
]


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_the_battery_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "triton", "-o", "addopts=", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "filterwarnings=default"]
    done = subprocess.run(
        [*command, *(f"tests/battery/{name}" for name in QUICK)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_a_program_that_fails_is_replaced() -> None:
    code = """
import torch
from undertow.measure.kernels.triton_kernel import TritonKernel
from undertow.measure.kernels import triton_fast
kernel = TritonKernel()
def fail(*given, **options): raise RuntimeError("no C compiler")
triton_fast.measure_chunks = {(1,): fail}
for _ in range(2):
    assert kernel.measure([torch.ones(5)]).moments[0, 0] == 5
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("does not work here (RuntimeError: no C compiler); measuring with plain torch") == 1


def test_a_missing_triton_is_said_once(monkeypatch, capsys) -> None:
    plain_import = builtins.__import__

    def without_triton(name, *rest, **options):
        if name.startswith("triton") or name.endswith("triton_kernel"):
            raise ImportError("No module named 'triton'")
        return plain_import(name, *rest, **options)

    monkeypatch.delenv("UNDERTOW_KERNEL", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(builtins, "__import__", without_triton)
    assert choose("cuda").name == "torch"
    assert capsys.readouterr().err.count("Triton cannot be used here (ImportError: No module named 'triton')") == 1

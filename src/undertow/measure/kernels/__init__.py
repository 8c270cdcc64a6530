"""Kernels: the same measurement done slowly and obviously, portably, and fast. `choose` picks one."""

import os
from collections.abc import Callable

from undertow.errors import SettingError, write_stderr
from undertow.measure.kernels.interface import Kernel


def _make_reference() -> Kernel:
    from undertow.measure.kernels.reference import ReferenceKernel

    return ReferenceKernel()


def _make_torch() -> Kernel:
    from undertow.measure.kernels.torch_portable import TorchKernel

    return TorchKernel()


def _make_native() -> Kernel:
    from undertow.measure.kernels.native import NativeKernel

    return NativeKernel()


def _make_triton() -> Kernel:
    import torch

    # Importing Triton takes a second and is of no use without a GPU, except under its interpreter.
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise ImportError("the Triton kernel needs a GPU")
    from undertow.measure.kernels.triton_kernel import TritonKernel

    return TritonKernel()


_KERNELS: dict[str, Callable[[], Kernel]] = {
    "reference": _make_reference,
    "torch": _make_torch,
    "native": _make_native,
    "triton": _make_triton,
}


def available() -> list[str]:
    """The kernels that work here.

    The native one is missing when the package was built without a C compiler, that of Triton without a GPU or Triton.
    """
    names: list[str] = []
    for name, make in _KERNELS.items():
        try:
            make()
        except ImportError:
            continue
        names.append(name)
    return names


def choose(device_type: str = "cpu") -> Kernel:
    """The best kernel for tensors on a device, or the one that `UNDERTOW_KERNEL` names."""
    forced = os.environ.get("UNDERTOW_KERNEL")
    if forced:
        usable = available()
        if forced not in usable:
            raise SettingError(
                f"UNDERTOW_KERNEL={forced!r} names no kernel that works here",
                way_out=f"Use one of {', '.join(usable)}, or leave it unset",
            )
        return _KERNELS[forced]()
    best = {"cpu": "native", "cuda": "triton"}.get(device_type, "torch")
    try:
        return _KERNELS[best]()
    except Exception as error:  # a broken Triton raises more than ImportError
        if best == "triton":
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            write_stderr(
                f"undertow: Triton cannot be used here ({reason}); "
                "measuring with plain torch operations instead, which is slower"
            )
    return _KERNELS["torch"]()

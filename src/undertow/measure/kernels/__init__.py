"""Kernels: the same measurement done slowly and obviously, portably, and fast. `choose` picks one."""

from __future__ import annotations

import os
from collections.abc import Callable

from undertow.errors import SettingError
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


_KERNELS: dict[str, Callable[[], Kernel]] = {"reference": _make_reference, "torch": _make_torch, "native": _make_native}


def available() -> list[str]:
    """The kernels that work here. The native one is missing when the package was built without a C compiler."""
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
    usable = available()
    forced = os.environ.get("UNDERTOW_KERNEL")
    if forced:
        if forced not in usable:
            raise SettingError(
                f"UNDERTOW_KERNEL={forced!r} names no kernel that works here",
                way_out=f"Use one of {', '.join(usable)}, or leave it unset",
            )
        return _KERNELS[forced]()
    if device_type == "cpu" and "native" in usable:
        return _KERNELS["native"]()
    return _KERNELS["torch"]()

"""Launching a Triton program again and again: after the first time, without Triton's own dispatch.

That looks at every argument to find the compiled program, which takes several times as long as the launch. Here the
caller promises that arguments are always alike: tensors that begin at a multiple of 16 bytes, and whole numbers that
the program is not compiled for (`do_not_specialize`), each of one size.
"""

from __future__ import annotations

from typing import Any

import torch


class Program:
    def __init__(self, function: Any, constants: dict[str, Any], **options: Any) -> None:
        """`constants` in the order in which the function takes them, after everything else."""
        self._function = function
        self._constants, self._options = constants, options
        self._compiled: dict[int | None, Any] = {}  # by the number of the device
        self._is_direct = True  # compiled programs can be launched that way with this Triton

    def launch(self, programs: int, device: torch.device, *arguments: torch.Tensor | int) -> None:
        """On the current stream of the device, which is the current one."""
        compiled = self._compiled.get(device.index)
        if compiled is not None and self._is_direct:
            plain = [one if type(one) is int else one.data_ptr() for one in arguments]  # pyright: ignore[reportAttributeAccessIssue]
            try:
                compiled[(programs, 1, 1)](*plain, *self._constants.values())
                return
            except TypeError:  # an older Triton, which takes other arguments, and has launched nothing
                self._is_direct = False
        self._compiled[device.index] = self._function[(programs,)](*arguments, **self._constants, **self._options)

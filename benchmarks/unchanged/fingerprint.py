"""What a program leaves behind, as hashes by part: equal exactly when every bit is."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Fingerprint:
    def __init__(self) -> None:
        self._parts: defaultdict[str, Any] = defaultdict(hashlib.sha256)
        self._seen: set[int] = set()

    def hashes(self) -> dict[str, str]:
        return {part: hasher.hexdigest()[:16] for part, hasher in self._parts.items()}

    def add(self, part: str, value: object) -> None:
        """Whatever a program returns: models and optimizers by what they hold, containers by their entries."""
        if isinstance(value, nn.Module):
            self._add_module(value)
        elif isinstance(value, Optimizer):
            self.add("optimizer", value.state_dict())
        elif isinstance(value, Tensor):
            self._add_tensor(part, value)
        elif isinstance(value, np.ndarray):
            self._note(part, value.dtype, value.shape, np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                self._note(part, key)
                self.add(part, entry)
        elif isinstance(value, (list, tuple)):
            self._note(part, len(value))
            for entry in value:
                self.add(part, entry)
        elif isinstance(value, torch.Generator):
            self._add_tensor(part, value.get_state())
        else:
            self._note(part, value if isinstance(value, (str, bytes, int, float, bool, type(None))) else type(value))

    def add_surroundings(self) -> None:
        """The random streams, and the settings of torch that hold for the whole process."""
        self._note("python random", random.getstate())
        name, keys, *rest = np.random.get_state()
        self._note("numpy random", name, keys.tobytes(), rest)  # pyright: ignore[reportAttributeAccessIssue]
        self._add_tensor("torch random", torch.get_rng_state())
        self._note(
            "settings", torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
            torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision(), torch.get_default_device(),
        )  # fmt: skip

    def _add_module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        for name, parameter in module.named_parameters():
            self._note("weights", name, parameter.requires_grad)
            self._add_tensor("weights", parameter)
            self.add("gradients", parameter.grad)
        for name, buffer in module.named_buffers():
            self._note("buffers", name)
            self._add_tensor("buffers", buffer)
        self._note("modules", [(name, type(part).__name__, part.training) for name, part in module.named_modules()])

    def _add_tensor(self, part: str, value: Tensor) -> None:
        value = value.detach()
        self._note(part, value.dtype, tuple(value.shape), value.layout)
        if value.layout is not torch.strided:
            value = value.coalesce() if value.layout is torch.sparse_coo else value.to_sparse_coo().coalesce()
            self._add_tensor(part, value.indices())
            value = value.values()
        if isinstance(value, nn.parameter.UninitializedTensorMixin) or value.is_meta:
            return
        if value.is_quantized:
            value = value.int_repr()
        value = value.resolve_conj().resolve_neg().cpu().contiguous()
        self._note(part, value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")

    def _note(self, part: str, *values: object) -> None:
        for value in values:
            self._parts[part].update(value if isinstance(value, bytes) else repr(value).encode())
            self._parts[part].update(b"\0")

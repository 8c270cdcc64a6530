"""Findings as JSON, one POST each, to any address: the object is the one in `undertow report --json`."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from undertow.errors import UndertowError
from undertow.schema import Finding

_TIMEOUT = 5.0  # seconds for an answer
_PAUSE = 1.0  # seconds before the second and last attempt

Wording = Callable[[Finding, str], Mapping[str, Any]]


class Webhook:
    def __init__(self, address: str, run: str, wording: Wording) -> None:
        self._address, self._run, self._wording = address, run, wording

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """An address for alerts is told of nothing else."""

    def finding(self, finding: Finding) -> None:
        body = msgspec.json.encode(self._wording(finding, self._run))
        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"})
        try:
            self._send(request)
        except OSError as problem:
            if isinstance(problem, urllib.error.HTTPError) and problem.code < 500:
                raise UndertowError(f"it answered {problem.code} {problem.reason}") from None
            time.sleep(_PAUSE)
            self._send_again(request)

    def close(self) -> None:
        pass

    def _send(self, request: urllib.request.Request) -> None:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            answer.read()

    def _send_again(self, request: urllib.request.Request) -> None:
        """Errors are told without the address: it often holds a secret."""
        try:
            self._send(request)
        except urllib.error.HTTPError as problem:
            raise UndertowError(f"it answered {problem.code} {problem.reason} twice") from None
        except OSError as problem:
            raise UndertowError(f"no answer: {getattr(problem, 'reason', problem)}") from None


def open_sink(target: str, folder: Path, name: str) -> Webhook:
    return Webhook(target, name, lambda finding, run: {"run": run, **msgspec.to_builtins(finding)})

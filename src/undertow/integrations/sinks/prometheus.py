"""Prometheus: an endpoint to scrape, at `prometheus:PORT` or `prometheus:ADDRESS:PORT`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from undertow.integrations.sinks.digest import NAMES
from undertow.schema import Finding

_MOST_FINDINGS = 50  # sets of labels: a monitor keeps each for ever
_DEFAULT_PORT = 9464


class Prometheus:
    """A registry of its own: what the process serves besides stays as it is."""

    def __init__(self, address: str, port: int, run: str) -> None:
        registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"undertow_{name}", name.replace("_", " "), ["run"], registry=registry).labels(run)
            for name in ("step", *NAMES)
        }
        for gauge in self._gauges.values():
            gauge.set(float("nan"))  # not measured yet is not 0
        self._findings = Gauge(
            "undertow_finding",
            "1 for each thing found, at its first layer",
            ["run", "code", "name", "severity", "layer"],
            registry=registry,
        )
        self._run = run
        self._shown: dict[tuple[str, str], str] = {}
        self._server, self._thread = start_http_server(port, address, registry)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in (("step", step), *values.items()):
            self._gauges[name].set(value)

    def finding(self, finding: Finding) -> None:
        layer = finding.layers[0] if finding.layers else ""
        place = (finding.code, layer)
        earlier = self._shown.get(place)
        if earlier is not None:  # the same one, worse
            self._findings.remove(self._run, finding.code, finding.name, earlier, layer)
        elif len(self._shown) >= _MOST_FINDINGS:
            return  # counted in undertow_findings_… all the same
        self._shown[place] = str(finding.severity)
        self._findings.labels(self._run, finding.code, finding.name, str(finding.severity), layer).set(1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_sink(target: str, folder: Path, name: str) -> Prometheus:
    """Seen from this machine only, unless an address is named."""
    address, _, port = target.rpartition(":")
    return Prometheus(address or "127.0.0.1", int(port or _DEFAULT_PORT), name)

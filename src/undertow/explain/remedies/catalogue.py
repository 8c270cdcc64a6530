"""Remedies that conditions of several codes give, by id."""

from __future__ import annotations

from undertow.detect.features import remedies as shared
from undertow.schema.findings import Remedy

TEMPLATES: dict[str, Remedy] = {remedy.id: remedy for remedy in vars(shared).values() if isinstance(remedy, Remedy)}

"""axe-core, which judges whether everybody can use a page: fetched once from npm, never part of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION = "4.14.0"
CACHE = Path(__file__).parents[2] / ".cache" / "axe-core"
_INSIDE = "package/axe.min.js"
_ASK = """async () => {
  const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
  const told = (one) => `${one.html.slice(0, 200)} ${one.failureSummary}`;
  return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map(told) }));
}"""


def axe_core() -> str:
    """Its script; where it cannot be had, the test is skipped and says why."""
    kept = CACHE / f"axe-{VERSION}.js"
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core cannot be fetched: there is no npm on this machine")
        with tempfile.TemporaryDirectory() as folder:
            try:
                command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", folder]
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
                with tarfile.open(Path(folder) / f"axe-core-{VERSION}.tgz") as archive:
                    script = archive.extractfile(_INSIDE)
                    assert script is not None
                    text = script.read()
            except (subprocess.SubprocessError, OSError, tarfile.TarError, KeyError) as problem:
                pytest.skip(f"axe-core cannot be fetched from npm: {problem}")
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(text)
        fresh.replace(kept)  # at once, for tests that run side by side
    return kept.read_text(encoding="utf-8")


def complaints(page: Page, script: str) -> list[dict[str, Any]]:
    """What is seriously or critically wrong with the page as it stands."""
    # Not as an element of the page: its policy refuses scripts from elsewhere, as it should.
    page.evaluate(script)
    found: list[dict[str, Any]] = page.evaluate(_ASK)
    return [one for one in found if one["impact"] in ("serious", "critical")]

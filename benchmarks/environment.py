"""A virtual environment of a benchmark's own, for the real packages that Undertow is measured against."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT, SOURCE


@dataclass(frozen=True, slots=True)
class Environment:
    folder: Path
    requirements: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def is_this(self) -> bool:
        return Path(sys.prefix) == self.folder

    def prepare(self) -> None:
        """Install what is missing, package by package: one that cannot be had must not stop the others."""
        if not Path(self.python).exists():
            try:
                import venv
            except ModuleNotFoundError:
                sys.exit("this Python has no venv module; install it (python3-venv) and try again")
            print(f"making {self.folder.name}; this happens once", file=sys.stderr)
            venv.create(self.folder, with_pip=True)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        stamp = self.folder / ".requirements"
        wanted = [line for line in self.requirements.read_text().splitlines() if line and not line.startswith("#")]
        wanted += project["dependencies"]
        if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
            install = [self.python, "-m", "pip", "install", "--quiet", "-c", str(self.requirements)]
            for requirement in wanted:
                subprocess.call([*install, requirement])
            stamp.write_text("\n".join(wanted))
        # The project itself, editable: its kernel is the one that `make install` has built in place.
        library = next((self.folder / "lib").glob("python3*")) / "site-packages"
        (library / "undertow-editable.pth").write_text(str(SOURCE))

    def call(self, module: str, *arguments: str, **options: str) -> int:
        """Run one of our modules in it, from the repository root."""
        return subprocess.call([self.python, "-m", module, *arguments], cwd=ROOT, env={**os.environ, **options})


BESIDE_OTHERS = Environment(ROOT / ".venv-bench", ROOT / "benchmarks" / "overhead" / "requirements.txt")
BESIDE_WEIGHTWATCHER = Environment(ROOT / ".venv-bench-weights", ROOT / "benchmarks" / "weights" / "requirements.txt")
OF_OTHERS = Environment(ROOT / ".venv-bench-unchanged", ROOT / "benchmarks" / "unchanged" / "requirements.txt")

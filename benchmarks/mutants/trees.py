"""Copies of the repository, each with an interpreter that imports its own copy of the library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ROOT, SOURCE

LEFT_BEHIND = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "__pycache__",
    "*.egg-info",
    "build",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "runs",
    ".cache",
)


@dataclass(slots=True)
class Tree:
    root: Path
    folder: Path  # what belongs to it: interpreter, temporary files
    _written: int = field(default=0, init=False)

    @property
    def python(self) -> str:
        return str(self.folder / "venv" / "bin" / "python")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.write_text(text, encoding="utf-8")
        self._written += 1  # a time of its own, or the bytecode of the last one of the same length would be taken
        moment = 1_500_000_000 + 10 * self._written
        os.utime(target, (moment, moment))

    def run(self, plugin: str, arguments: list[str], seconds: float | None, **environment: str) -> str:
        """What pytest says; a run that takes too long is ended with all that it has started."""
        command = [self.python, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider"]
        command += ["--basetemp", str(self.folder / "temporary"), *arguments]
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(
            command, cwd=self.root, env=surroundings, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            return "it took too long"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.communicate()


def copy(folder: Path) -> Tree:
    tree = Tree(folder / "tree", folder)
    shutil.copytree(ROOT, tree.root, ignore=LEFT_BEHIND)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    library = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    others = [path for path in sys.path if path and Path(path) not in (ROOT, SOURCE) and Path(path).is_dir()]
    (library / "mutant.pth").write_text("\n".join([str(tree.root / "src"), *others]))
    command = folder / "venv" / "bin" / "undertow"
    command.write_text(f"#!{tree.python}\nimport sys\nfrom undertow.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    for script in Path(sys.executable).parent.iterdir():
        _take_script(script, folder / "venv" / "bin" / script.name, tree.python)
    return tree


def _take_script(script: Path, target: Path, python: str) -> None:
    """A command of this environment, such as `undertow` or `torchrun`, under the other interpreter."""
    if target.exists() or not script.is_file():
        return
    content = script.read_bytes()
    if content.startswith(b"#!") and b"python" in content.split(b"\n", 1)[0]:
        target.write_bytes(f"#!{python}\n".encode() + content.split(b"\n", 1)[1])
        target.chmod(0o755)

"""`undertow doctor`."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from undertow.cli.output import print_json, say
from undertow.probe.torch_version import OLDEST as OLDEST_TORCH

LITTLE_SPACE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `fine` is None for a remark that is neither good nor bad."""

    name: str
    fine: bool | None
    says: str
    hint: str = ""


@click.command(
    help="Is this machine ready to watch a training? Exit code 1 when something is missing.",
    epilog="Example:  undertow doctor --json",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of checks.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    checks = list(examine())
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            glyph = {True: "✔", False: "✖", None: "·"}[check.fine]
            say(f"{glyph} {check.name:<10} {check.says}")
            if check.hint:
                say(f"  {'':<10} {check.hint}")
    ctx.exit(1 if any(check.fine is False for check in checks) else 0)


def examine() -> Iterator[Check]:
    yield Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} at {sys.executable}")
    yield Check("undertow", None, f"{_version('undertow')}, with {_versions('numpy', 'rich', 'click', 'msgspec')}")
    yield from _torch()
    yield _extra("tables", {"pandas": "pandas", "pyarrow": "pyarrow"})
    yield _extra("pictures", {"PIL": "pillow"})
    yield _extra("video", {"PIL": "pillow", "av": "av"})
    yield _directory()


def _torch() -> Iterator[Check]:
    if importlib.util.find_spec("torch") is None:
        yield Check("torch", False, "not installed", "Watching needs it: pip install torch. Reading runs does not.")
        return
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as problem:  # a broken build can raise anything
        yield Check("torch", False, f"cannot be imported: {problem}", "Reinstall torch for this machine.")
        return
    version = str(torch.__version__)
    supported = _numbers(version) >= OLDEST_TORCH
    hint = "" if supported else f"Undertow needs {'.'.join(map(str, OLDEST_TORCH))} or newer: pip install -U torch"
    yield Check("torch", supported, f"{version}, {torch.get_num_threads()} threads", hint)
    yield _kernel()
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        triton = f"triton {_version('triton')}" if importlib.util.find_spec("triton") else "no triton"
        yield Check("cuda", None, f"{names}; {triton}")
    else:
        yield Check("cuda", None, "no CUDA device: trainings on the CPU are watched by the CPU kernel")


def _kernel() -> Check:
    try:
        kernels: Any = importlib.import_module("undertow.measure.kernels")
        name = str(kernels.choose("cpu").name)
    except Exception as problem:  # whatever it is, watching would meet it too
        return Check(
            "kernel", False, f"cannot be loaded: {problem}", "Reinstall: pip install --force-reinstall undertow"
        )
    if name == "native":
        return Check("kernel", True, "native")
    compiler = next((found for found in ("cc", "gcc", "clang") if shutil.which(found)), None)
    hint = "The native one is many times faster: " + (
        f"reinstall from source with {compiler}: pip install --force-reinstall --no-binary undertow undertow"
        if compiler
        else "install a C compiler (apt-get install gcc), then reinstall undertow from source"
    )
    return Check("kernel", None, f"{name} (no native kernel was built)", hint)


def _extra(name: str, packages: dict[str, str]) -> Check:
    """`packages` by the names they are imported by."""
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        return Check(
            name, None, f"{' and '.join(missing)} not installed", f'For {name}: pip install "undertow[{name}]"'
        )
    return Check(name, None, _versions(*packages.values()))


def _directory() -> Check:
    from undertow.settings import Settings

    folder = Settings.resolve().directory
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    if not os.access(existing, os.W_OK | os.X_OK):
        hint = "Choose a folder you may write to with UNDERTOW_DIR."
        return Check("runs", False, f"{folder} cannot be written", hint)
    free = shutil.disk_usage(existing).free
    says = f"{folder}{'' if folder.is_dir() else ' (made when needed)'}, {free / 1e9:,.0f} GB free"
    if free < LITTLE_SPACE:
        return Check("runs", False, says, "Less than 1 GB: free some, or set UNDERTOW_DIR to another disk.")
    return Check("runs", True, says)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _versions(*packages: str) -> str:
    return ", ".join(f"{package} {_version(package)}" for package in packages)


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` → (2, 13)."""
    digits = [part for part in version.split("+")[0].split(".")[:2] if part.isdigit()]
    return tuple(int(part) for part in digits)

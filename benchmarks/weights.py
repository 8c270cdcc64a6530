"""What judging weights costs: Undertow beside weightwatcher, on the same models, in one process.

`python benchmarks/weights.py [--rounds N] [--threads N]`

Both tools take turns; medians are compared. Undertow's `weights` gives everything it has, `shared` only what
weightwatcher gives too: norm, spectral norm, stable rank, exponent of the tail. Two models of about ten million
parameters, with heavy-tailed weights: wide layers (an MLP of width 2,048), where Undertow uses its randomised method,
and narrow ones (transformer blocks of width 512), where both compute all singular values. The bar is for the wide one;
the narrow one shows what is left when nothing is saved. The largest difference of the answers is printed, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
import tomllib
import venv
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench-weights"
REQUIREMENTS = Path(__file__).with_name("weights_requirements.txt")
BAR = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how many times each tool has its turn")
    parser.add_argument("--threads", type=int, default=0, help="threads of BLAS; its own default otherwise")
    arguments = parser.parse_args()
    if Path(sys.prefix) != ENVIRONMENT:
        _prepare_environment()
        environment = dict(os.environ)
        if arguments.threads:
            environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(arguments.threads))
        return subprocess.call([_python(), *sys.argv], env=environment)
    return _measure(arguments.rounds)


def _python() -> str:
    return str(ENVIRONMENT / "bin" / "python")


def _prepare_environment() -> None:
    if not Path(_python()).exists():
        print(f"making {ENVIRONMENT.name}; this happens once", file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stamp = ENVIRONMENT / ".requirements"
    wanted = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    wanted += project["dependencies"]
    if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
        subprocess.check_call([_python(), "-m", "pip", "install", "--quiet", *wanted])
        stamp.write_text("\n".join(wanted))
    library = next((ENVIRONMENT / "lib").glob("python3*")) / "site-packages"
    (library / "undertow-editable.pth").write_text(str(ROOT / "src"))


def _models() -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)

    def block(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def heavy(model: nn.Sequential) -> nn.Sequential:
        """Inputs of very different importance: squares of singular values with a tail exponent of about 2.5."""
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter *= torch.rand(parameter.shape[1]) ** (-1 / 3)
        return model

    wide = nn.Sequential(nn.Linear(784, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 10))
    return {"wide": heavy(wide), "narrow": heavy(nn.Sequential(*(block(512) for _ in range(3))))}


def _measure(rounds: int) -> int:
    warnings.simplefilter("ignore")
    import weightwatcher

    import undertow

    logging.disable(logging.CRITICAL)  # weightwatcher tells what it does at length
    fastest: dict[str, float] = {}
    for name, model in _models().items():
        tools: dict[str, Callable[[], Any]] = {
            "undertow.weights": lambda model=model: undertow.weights(model),
            "undertow, shared": lambda model=model: _shared(model),
            "weightwatcher": lambda model=model: weightwatcher.WeightWatcher(model=model).analyze(),
        }
        seconds: dict[str, list[float]] = {tool: [] for tool in tools}
        answers: dict[str, Any] = {}
        for _ in range(rounds):
            for tool, call in tools.items():
                start = time.perf_counter()
                answers[tool] = call()
                seconds[tool].append(time.perf_counter() - start)
        size = sum(parameter.numel() * 4 for parameter in model.parameters())
        print(f"\n{name}: {size / 4e6:.1f} million parameters, medians of {rounds}")
        theirs = median(seconds["weightwatcher"])
        for tool, taken in seconds.items():
            ours = median(taken)
            ratios = f"{theirs / ours:6.1f} × as fast as weightwatcher" if tool != "weightwatcher" else ""
            print(f"  {tool:18} {ours:7.2f} s  {ours / size * 1e9:7.1f} s per GB  {ratios}")
        fastest[name] = theirs / median(seconds["undertow, shared"])
        _compare(answers["undertow, shared"], answers["weightwatcher"])
    print(f"\nshared statistics, wide: {fastest['wide']:.1f} × as fast; the bar is {BAR:.0f} ×")
    return 0 if fastest["wide"] >= BAR else 1


def _shared(model: Any) -> dict[str, Any]:
    """Norm, spectral norm, stable rank and exponent, for the matrices that weightwatcher looks at."""
    import numpy as np

    from undertow.analyze.spectrum import spectrum
    from undertow.checkpoints import open_checkpoint

    found: dict[str, Any] = {}
    for entry in open_checkpoint(model).entries:
        if len(entry.shape) == 2 and min(entry.shape) >= 50:
            with entry.elements() as elements:
                values = elements.widen(elements.matrix)
                norm, reach = float(np.linalg.norm(values)), float(max(values.max(), -values.min()))
                found[entry.path.removesuffix(".weight")] = spectrum(elements, norm, reach)
    return found


def _compare(ours: dict[str, Any], theirs: Any) -> None:
    """How far the answers are apart, in the worst layer."""
    worst = {"spectral norm": 0.0, "stable rank": 0.0, "exponent, exact": 0.0, "exponent, randomised": 0.0}
    for row in theirs.to_dict("records"):
        found = ours.get(row["longname"])
        if found is None:
            continue
        pairs = {
            "spectral norm": (found.spectral_norm**2, row["spectral_norm"]),
            "stable rank": (found.stable_rank, row["stable_rank"]),
            f"exponent, {found.method}": (found.tail_exponent, row["alpha"]),
        }
        for statistic, (one, other) in pairs.items():
            worst[statistic] = max(worst[statistic], abs(one / other - 1))
    print("  largest difference: " + ", ".join(f"{name} {value:.1e}" for name, value in worst.items() if value))


if __name__ == "__main__":
    sys.exit(main())

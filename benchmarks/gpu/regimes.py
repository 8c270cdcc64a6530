"""What watching adds to small and large steps on a GPU, and how often it looks: one process per checkout.

`python -m benchmarks.gpu.regimes [--only gpt,resnet,gpt2,compiled,graphs] [--beside FOLDER] [--seconds 6]
[--ways default,low,every]`

One watched training is let go and taken up again (as in `benchmarks.overhead.fine`), so that stretches of steps with
and without taps lie side by side. Clipping is on, activations are sampled. For the default it is also said how often
each module was sampled in the first steps, and how many calls of a step make the host wait for the device, by torch's
own debug mode. `low`: with a floor of 0.3 ms. `every`: every step is measured, with all activations.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import ROOT, SOURCE
from benchmarks.overhead.models import Block, LanguageModel

WAYS: dict[str, dict[str, Any]] = {
    "default": {}, "low": {"budget_floor": 0.0003}, "every": {"every": 1, "activations": 1},
}  # fmt: skip
COVERED = 500  # steps
STRETCH = 40


@dataclass
class Regime:
    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]
    covered: int = COVERED


class Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential()
        if stride > 1 or narrow != wide:
            self.skip = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(inner + self.skip(x))


def _gpt(
    name: str, width: int, depth: int, heads: int, batch: int, length: int, vocabulary: int, **compiled: Any
) -> Regime:
    torch.manual_seed(0)
    model = LanguageModel(vocabulary, length, width, 0)
    model.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run: Any = torch.compile(model, **compiled) if compiled else model
    tokens = torch.randint(vocabulary, (batch, length + 1), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Regime(name, model, optimizer, step, COVERED if width < 700 else 200)


def resnet() -> Regime:
    torch.manual_seed(0)
    stages = [Residual(narrow, wide, stride) for narrow, wide, stride in (
        (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
        (512, 512, 1),
    )]  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    pictures, labels = torch.randn(128, 3, 32, 32, device="cuda"), torch.randint(10, (128,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Regime("ResNet-18, fp16 scaler, eager", model, optimizer, step)


REGIMES: dict[str, Callable[[], Regime]] = {  # compiled ones last: modules are not looked into after that
    "gpt": lambda: _gpt("10M GPT, eager", 384, 6, 6, 64, 256, 256),
    "resnet": resnet,
    "gpt2": lambda: _gpt("GPT-2 small, eager", 768, 12, 12, 16, 1024, 50257),
    "compiled": lambda: _gpt("10M GPT, compiled", 384, 6, 6, 64, 256, 256, mode="default"),
    "graphs": lambda: _gpt("10M GPT, compiled with CUDA graphs", 384, 6, 6, 64, 256, 256, mode="reduce-overhead"),
    "gpt2compiled": lambda: _gpt("GPT-2 small, compiled", 768, 12, 12, 16, 1024, 50257, mode="default"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(REGIMES))
    parser.add_argument("--beside", type=Path, help="another checkout, to compare with")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timed steps, for each way of watching")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        for name in arguments.only.split(","):
            print(json.dumps(_measure(REGIMES[name](), arguments.seconds, arguments.ways.split(","))), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for tree in [ROOT] + [arguments.beside.resolve()] * (arguments.beside is not None):
        print(f"\n{'this checkout' if tree == ROOT else 'the other one'}", flush=True)
        code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        command = [sys.executable, "-c", code, __file__, "--here", "--only", arguments.only, "--ways", arguments.ways]
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{SOURCE}:{ROOT}", "UNDERTOW_QUIET": "1"}
        with subprocess.Popen(
            [*command, "--seconds", str(arguments.seconds)], cwd=ROOT, env=environment, stdout=subprocess.PIPE
        ) as process:
            for line in process.stdout or ():
                _print(json.loads(line))
    return 0


def _print(found: dict[str, Any]) -> None:
    print(f"{found['name']}: plain step {found['plain']:.2f} ms, {found['waits']} synchronising calls")
    for way in [way for way in WAYS if way in found]:
        one = found[way]
        print(
            f"  {way:8} adds {one['added']:6.3f} ms, {one['added'] / found['plain']:+7.2%}; {one['waits']} waiting "
            f"calls; believed {one['believed']:.3f} ms; gradients every {one['gradients']}, a round of modules takes "
            f"{one['round']:.2f} ms"
        )
        print(f"           at first: {one['coverage']}", flush=True)


def _measure(regime: Regime, seconds: float, ways: list[str]) -> dict[str, Any]:
    import undertow
    from undertow.probe import taps

    steps = regime.step
    for _ in range(8):
        steps()
    found: dict[str, Any] = {"name": regime.name, "steps": regime.covered}
    found["waits"] = _waits(steps)
    plain: list[float] = []

    def let_go(recorder: Any) -> None:
        taps.remove(recorder)
        recorder._forward.stop()  # modules would be looked at in the next step, which is a plain one
        recorder._forward.take()

    def stretch(recorder: Any, watched: bool) -> float:
        if watched:
            taps.add(recorder)
            steps()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STRETCH):
            steps()
        torch.cuda.synchronize()
        spent = (time.perf_counter() - began) / STRETCH
        let_go(recorder)
        return 1e3 * spent

    for way in ways:
        with tempfile.TemporaryDirectory(prefix="regimes-") as folder:
            watch = undertow.watch(regime.model, regime.optimizer, run_dir=f"{folder}/run", quiet=True, **WAYS[way])
            recorder, governor = watch._recorder, watch._run.governor
            for _ in range(60 if way == "every" else regime.covered):
                steps()
            waits = _waits(steps)
            watch._mailbox.flush(60)
            coverage = _coverage(watch)
            let_go(recorder)
            plain.append(stretch(recorder, False))
            added: list[float] = []
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                own = stretch(recorder, True)
                plain.append(stretch(recorder, False))
                added.append(own - (plain[-2] + plain[-1]) / 2)
            found[way] = {
                "coverage": coverage, "added": median(added), "waits": waits,
                "believed": 1e3 * (governor.seconds_per_step or 0),
                "gradients": governor._intervals["gradient"], "round": 1e3 * governor.round_seconds,
            }  # fmt: skip
            watch.close()
            print(f"  {regime.name}, {way}: {found[way]}", file=sys.stderr, flush=True)
    return {**found, "plain": median(plain)}


def _coverage(watch: Any) -> str:
    streams, said = watch.diagnose().coverage.streams, list[str]()
    for name in ("activations", "gradients"):
        seen = streams.get(name)
        if seen is not None and seen.steps_per_layer is not None:
            each = seen.steps_per_layer
            said.append(
                f"{name} of a layer at {each.min} steps (median {each.median:g}), largest gap {seen.largest_gap}"
            )
    return "; ".join(said) or "nothing"


def _waits(step: Callable[[], None], steps: int = 10) -> float:
    """Of a step, on average: the background thread's are in it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(steps):
            step()
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in said) / steps


if __name__ == "__main__":
    sys.exit(main())

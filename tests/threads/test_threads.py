"""Threads that train: a step belongs to the thread that takes it. In processes of their own, because they crashed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import undertow

_BEGINNING = """
import os, sys, threading, torch, undertow
from concurrent.futures import ThreadPoolExecutor
from torch import nn
torch.set_num_threads(1)
def network(seed, width=96):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
def loss_of(model, step):
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
    return model(inputs).square().mean()
def train(model, steps, first=0, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
def at_once(*calls):
    threads = [threading.Thread(target=call, args=arguments) for call, *arguments in calls]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
def watch(*models, **settings):
    return undertow.watch(*models, run_dir=sys.argv[1], every=1, quiet=True, **settings)
models = [network(seed) for seed in range(3)]
"""
_END = """
print([parameter.detach().double().sum().item() for model in models for parameter in model.parameters()])
"""
_TRAININGS = {
    "the watched one among others": """
watch(models[0], activations=True)
at_once(*[(train, model, 30) for model in models])
""",
    "large ones, read without the lock": """
models = [network(seed, 512) for seed in range(3)]
watch(models[1])
at_once(*[(train, model, 30) for model in models])
""",
    "found among others": """
watch(activations=True)
at_once(*[(train, model, 30) for model in models])
""",
    "one thread for each part": """
watch(models[0])
optimizer = torch.optim.Adam(models[0].parameters(), lr=1e-3)
for part in range(3):
    at_once((train, models[0], 10, part * 10, optimizer))
""",
    "one thread for each part, found": """
watch()
for part in range(3):
    at_once((train, models[part % 3], 10))
""",
    "backward passes in a thread, steps in another": """
watch(models[0])
optimizer = torch.optim.Adam(models[0].parameters(), lr=1e-3)
with ThreadPoolExecutor(1) as pool:
    for step in range(30):
        optimizer.zero_grad()
        pool.submit(lambda: loss_of(models[0], step).backward()).result()
        optimizer.step()
""",
    "beside a thread that only runs a model": """
watch(models[0], activations=True)
done = threading.Event()
def infer():
    while not done.is_set():
        loss_of(models[1], 0)
thread = threading.Thread(target=infer)
thread.start()
train(models[0], 30)
done.set()
thread.join()
""",
}


def _run(program: str, folder: Path, disabled: str = "") -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _BEGINNING + program + _END, folder],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "UNDERTOW_DISABLED": disabled},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", _TRAININGS)
def test_every_step_of_the_watched_training_is_kept(name: str, tmp_path: Path) -> None:
    plain, _ = _run(_TRAININGS[name], tmp_path / "none", disabled="1")
    assert _run(_TRAININGS[name], tmp_path / "run") == (plain, "")
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("finished", 30)
    if "in a thread" not in name:
        assert not np.isnan(run.scalars("loss")).any()


def test_other_threads_do_not_change_what_is_read(tmp_path: Path) -> None:
    alone = "watch(models[0], activations=True); train(models[0], 30)"
    _run(alone, tmp_path / "alone")
    _run(_TRAININGS["the watched one among others"], tmp_path / "among")
    runs = [undertow.open_run(tmp_path / name) for name in ("alone", "among")]
    for quantity in ("gradient_norm", "update_ratio"):
        assert np.array_equal(runs[0].matrix(quantity), runs[1].matrix(quantity), equal_nan=True)
    assert runs[1].diagnose().coverage.reasons[-1:] == ("another thread trains too, which is not part of this run",)


def test_a_thread_without_an_optimizer_is_mentioned(tmp_path: Path) -> None:
    program = """
def train(model, steps):
    for step in range(steps):
        loss_of(model, step).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
watch()
train(models[0], 5)
at_once((train, models[1], 30))
train(models[0], 5)
"""
    plain, _ = _run(program, tmp_path / "none", disabled="1")
    assert _run(program, tmp_path / "run") == (plain, "")
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 10
    said = "another thread takes gradients of other weights, which are not part of this run"
    assert run.diagnose().coverage.reasons.count(said) == 1


def test_threads_that_train_the_same_parameters(tmp_path: Path) -> None:
    """While one is in its backward pass another has its own: nobody can tell what the next step is made of."""
    program = """
model = models[0]
watch(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
train(model, 5, optimizer=optimizer)
inside, added = threading.Event(), threading.Event()
def waits(gradient):
    inside.set()
    added.wait(60)
loss = loss_of(model, 5)
loss.register_hook(waits)
def other():
    inside.wait(60)
    loss_of(model, 9).backward()
    added.set()
thread = threading.Thread(target=other)
thread.start()
loss.backward()
thread.join()
train(model, 5, 6, optimizer)
"""
    plain, _ = _run(program, tmp_path / "none", disabled="1")
    printed, said = _run(program.replace("watch(model)", "w = watch(model)"), tmp_path / "run")
    assert printed == plain
    assert said.count("\n") == 1
    assert "several threads train the same parameters at once" in said
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, run.steps.tolist()) == ("detached", list(range(5)))


def test_closing_from_another_thread(tmp_path: Path) -> None:
    program = """
w = watch(models[0], activations=True)
begun = threading.Event()
models[0][0].register_forward_hook(lambda *_: begun.set())
thread = threading.Thread(target=train, args=(models[0], 300))
thread.start()
begun.wait(60)
w.close()
thread.join()
from undertow.probe import taps
train(models[1], 1)
assert not taps.installed()
"""
    plain, _ = _run(program, tmp_path / "none", disabled="1")
    for attempt in range(3):
        assert _run(program, tmp_path / f"run{attempt}") == (plain, "")


def test_a_model_that_only_steps_is_found(tmp_path: Path) -> None:
    """Other threads differentiate copies of it: two passes that lead nowhere come before every step."""
    program = (
        _BEGINNING
        + """
import copy
watch()
model = models[0]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    copies = [copy.deepcopy(model) for _ in range(2)]
    at_once(*[(lambda one: loss_of(one, step).backward(), one) for one in copies])
    for parts in zip(model.parameters(), *(one.parameters() for one in copies)):
        parts[0].grad = parts[1].grad + parts[2].grad
    optimizer.step()
"""
    )
    folder = tmp_path / "run"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=300)
    assert undertow.open_run(folder).steps.tolist() == list(range(8))

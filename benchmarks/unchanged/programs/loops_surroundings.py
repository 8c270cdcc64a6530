"""Ways to train with torch alone: modes, errors, data, threads."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.unchanged.loop_parts import classes, classify, conv, mlp, rows
from benchmarks.unchanged.program import STEPS, Group, fit, mean_square

GROUP = Group("loops")


@GROUP.program()
def anomaly_mode() -> object:
    model = mlp(8, 16, 4)
    with torch.autograd.detect_anomaly():
        return fit(model, lambda: classify(model))


@GROUP.program()
def deterministic_algorithms() -> object:
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Conv1d(6, 8, 3), nn.Upsample(scale_factor=2, mode="linear"))
    return fit(model, lambda: model(torch.randint(0, 20, (4, 6))).square().mean())


@GROUP.program()
def two_threads_in_an_operation() -> object:
    torch.set_num_threads(2)
    model = conv()
    model(torch.randn(4, 3, 24, 24))
    return fit(model, lambda: model(torch.randn(4, 3, 24, 24)).square().mean())


@GROUP.program()
def float64_by_default() -> object:
    torch.set_default_dtype(torch.float64)
    model = mlp(8, 16, 4)
    return fit(model, lambda: classify(model))


@GROUP.program()
def infinities_and_nans() -> object:
    model, step = mlp(8, 16, 4), iter(range(100))
    return fit(model, lambda: classify(model) * (float("nan") if next(step) == 4 else 1.0))


@GROUP.program()
def an_error_that_is_caught() -> object:
    model = mlp(8, 16, 4)
    said = []

    def loss() -> Tensor:
        value = classify(model)
        for wrong in (lambda: torch.zeros(()).backward(), lambda: torch.autograd.grad(value, rows())):
            try:
                wrong()
            except RuntimeError as error:
                said.append(str(error))
        return value

    return fit(model, loss), said


@GROUP.program(steps=4)
def an_error_inside_backward() -> object:
    model = mlp(8, 16, 4)
    optimizer, said = SGD(model.parameters(), 0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(rows())
        if step % 2:
            out.register_hook(lambda g: 1 / 0)
        try:
            out.square().mean().backward()
            optimizer.step()
        except ZeroDivisionError as error:
            said.append(str(error))
    return model, optimizer, said


def _loaded(workers: int) -> object:
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, 16, shuffle=True, num_workers=workers, generator=generator)
    model = mlp(8, 16, 4)
    optimizer = Adam(model.parameters(), 1e-3)
    for _epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, optimizer, generator


GROUP.add("data-loader", lambda: _loaded(0))
GROUP.add("data-loader-with-workers", lambda: _loaded(2))


@GROUP.program()
def evaluation_between_steps() -> object:
    model = conv()
    model(torch.randn(4, 3, 12, 12))
    seen = []

    def loss() -> Tensor:
        model.eval()
        with torch.no_grad():
            seen.append(model(torch.randn(4, 3, 12, 12)))
        with torch.inference_mode():
            seen.append(model(torch.randn(4, 3, 12, 12)).clone())
        model.train()
        return mean_square(model(torch.randn(4, 3, 12, 12)))

    return fit(model, loss), seen


def _alone(seed: int, results: dict[int, object], steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3, generator=generator)
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    results[seed] = (model, optimizer)


@GROUP.program(steps=1)
def threads_that_train_their_own_models() -> object:
    """Which steps a watch that was given no model sees of them is left open; the weights are not."""
    results: dict[int, object] = {}
    with torch.random.fork_rng():  # threads share torch's own stream, which they must not use
        threads = [threading.Thread(target=_alone, args=(seed, results, 3 * STEPS)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [results[seed] for seed in sorted(results)]


@GROUP.program()
def threads_that_share_a_step() -> object:
    """Data-parallel by hand: every thread differentiates its replica, the first model takes the step."""
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        replicas = [copy.deepcopy(model) for _ in range(2)]
        batches = [(rows(), classes()) for _ in replicas]

        def work(replica: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
            F.cross_entropy(replica(batch[0]), batch[1]).backward()

        threads = [threading.Thread(target=work, args=pair) for pair in zip(replicas, batches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for parts in zip(model.parameters(), *(replica.parameters() for replica in replicas)):
            parts[0].grad = torch.stack([part.grad for part in parts[1:]]).mean(0)  # pyright: ignore
        optimizer.step()
    return model, optimizer


@GROUP.program()
def backward_in_another_thread() -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = classify(model)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
    return model, optimizer

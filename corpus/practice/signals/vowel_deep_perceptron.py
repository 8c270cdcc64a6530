"""Which vowel was spoken? Short-time spectra with two formants each, read by a rather deep perceptron."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BINS, VOWELS = 40, 8
FORMANTS = [(6, 22), (8, 18), (11, 29), (13, 24), (9, 33), (15, 27), (5, 15), (12, 19)]


def recordings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1000 + seed)
    y = torch.randint(VOWELS, (n,), generator=g)
    f = torch.tensor(FORMANTS, dtype=torch.float32)[y] + torch.randn(n, 2, generator=g) * 0.8
    bins = torch.arange(BINS, dtype=torch.float32)
    peaks = torch.exp(-((bins - f[..., None]) ** 2) / 9.0)
    spectrum = peaks[:, 0] + 0.7 * peaks[:, 1] + 0.15 * torch.randn(n, BINS, generator=g).abs()
    return spectrum, y


def stack(depth: int, width: int, act: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(BINS, width), act()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), act()]
    return nn.Sequential(*layers, nn.Linear(width, VOWELS))


def start(net: nn.Module, std: float | None) -> None:
    for m in net.modules():
        if isinstance(m, nn.Linear):
            if std is None:
                nn.init.xavier_uniform_(m.weight, gain=5 / 3)
            else:
                nn.init.normal_(m.weight, 0.0, std)
            nn.init.zeros_(m.bias)


def right(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=160, bites="accuracy")
def vowels(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight tanh layers on standardised log spectra, plain descent with momentum."""
    torch.manual_seed(seed)
    x, y = recordings(1200, seed)
    if fault == "vowels_off_the_sound_card":
        x = x * 3000 + 8000  # as the card counts; the lines with logarithm and offset were lost
    else:
        x = torch.log(x + 0.05)
        x = (x - x.mean(0)) / x.std(0)
    train_x, train_y, test_x, test_y = x[:900], y[:900], x[900:], y[900:]

    net = stack(8, 40, nn.Sigmoid if fault == "vowels_sigmoid_all_the_way" else nn.Tanh)
    start(net, 0.02 if fault == "vowels_start_from_a_tutorial" else None)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    last = 0.0
    for _ in range(steps):
        pick = torch.randint(len(train_x), (64,))
        loss = loss_fn(net(train_x[pick]), train_y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    return {"loss": last, "accuracy": right(net, test_x, test_y)}


vowels.mistake(
    "vowels_sigmoid_all_the_way",
    "GRD001", "WGT003", "ACT003",
    summary="Sigmoids in all eight hidden layers: hardly anything of the gradient reaches the lower ones.",
    change="tanh or ReLU",
)  # fmt: skip
vowels.mistake(
    "vowels_start_from_a_tutorial",
    "WGT003", "GRD001", "ACT003",
    summary="All weights drawn with a deviation of 0.02, as a tutorial does for a net with norms; this one has none.",
    change="the initialisation of Xavier",
)  # fmt: skip
vowels.mistake(
    "vowels_off_the_sound_card",
    "DAT001",
    "ACT002",
    summary="Magnitudes in the thousands go into the first tanh, offset and all: it is saturated for every spectrum.",
    change="logarithm and standardisation",
    layers=("0", "1"),
)


@program(steps=120, bites="accuracy", adversarial="an update that grows while the gradient shrinks is unstable")
def vowels_as_in_1991(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One hidden layer of sigmoids, squared error against one-hot targets, all data in every step, resilient steps."""
    torch.manual_seed(seed)
    x, y = recordings(600, seed)
    x = (x - x.mean(0)) / x.std(0)
    net = nn.Sequential(nn.Linear(BINS, 24), nn.Sigmoid(), nn.Linear(24, VOWELS), nn.Sigmoid())
    target = nn.functional.one_hot(y, VOWELS).float()
    opt = torch.optim.Rprop(net.parameters(), lr=0.002, step_sizes=(1e-6, 0.1))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x[:450]), target[:450])
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "accuracy": right(net, x[450:], y[450:])}


@program(steps=150, bites="accuracy", adversarial="inputs of a ten-thousandth are badly scaled")
def vowels_in_volts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Spectra in volts, about 1e-4, but the first module is a layer norm that makes nothing of it."""
    torch.manual_seed(seed)
    x, y = recordings(1200, seed)
    x = x * 1e-4
    net = nn.Sequential(nn.LayerNorm(BINS, eps=1e-12), nn.Linear(BINS, 48), nn.GELU(), nn.Linear(48, VOWELS))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    last = 0.0
    for _ in range(steps):
        pick = torch.randint(900, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    return {"loss": last, "accuracy": right(net, x[900:], y[900:])}


@program(steps=140, bites="accuracy")
def vowels_by_maxout(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Maxout units with dropout of a fifth and Adagrad: nothing special, only not what one sees today."""
    torch.manual_seed(seed)
    x, y = recordings(1200, seed)
    x = torch.log(x + 0.05)
    x = (x - x.mean(0)) / x.std(0)

    class Maxout(nn.Module):
        def __init__(self, a: int, b: int, pieces: int = 3) -> None:
            super().__init__()
            self.lin = nn.Linear(a, b * pieces)
            self.pieces = pieces

        def forward(self, h: Tensor) -> Tensor:
            return self.lin(h).unflatten(-1, (self.pieces, -1)).amax(dim=1)

    net = nn.Sequential(Maxout(BINS, 32), nn.Dropout(0.2), Maxout(32, 32), nn.Dropout(0.2), nn.Linear(32, VOWELS))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.03)
    last = 0.0
    for _ in range(steps):
        pick = torch.randint(900, (64,))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        loss.backward()
        opt.step()
        last = loss.item()
    net.eval()
    return {"loss": last, "accuracy": right(net, x[900:], y[900:])}

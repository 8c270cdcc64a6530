"""Birds by their song: small spectrograms and a mixer, a script that grew in a field station."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BIRDS, FRAMES, BANDS = 6, 16, 20


def songs(seed: int, count: int = 1800) -> tuple[Tensor, Tensor]:
    """A bird rises or falls from a typical band at a typical speed; the rest is wind."""
    g = torch.Generator().manual_seed(seed + 900)
    bird = torch.randint(BIRDS, (count,), generator=g)
    start = 4 + 2 * bird.float() + torch.randn(count, generator=g)
    slope = torch.where(bird % 2 == 0, 0.4, -0.4) + 0.1 * torch.randn(count, generator=g)
    track = start[:, None] + slope[:, None] * torch.arange(FRAMES)
    power = torch.exp(-((torch.arange(BANDS)[None, None] - track[:, :, None]) ** 2) / 2)
    return power * 2 + 0.6 * torch.randn(count, FRAMES, BANDS, generator=g), bird


class MixerLayer(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.norm_time = nn.LayerNorm(width)
        self.time = nn.Sequential(nn.Linear(FRAMES, 24), nn.GELU(), nn.Linear(24, FRAMES))
        self.norm_band = nn.LayerNorm(width)
        self.band = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(drop), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norm_time(x).transpose(1, 2)).transpose(1, 2)
        return x + self.band(self.norm_band(x))


class SongMixer(nn.Module):
    def __init__(self, drop: float = 0.1, out_drop: float = 0.1) -> None:
        super().__init__()
        self.lift = nn.Linear(BANDS, 32)
        self.layers = nn.ModuleList(MixerLayer(32, drop) for _ in range(2))
        self.drop = nn.Dropout(out_drop)
        self.head = nn.Linear(32, BIRDS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.lift(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.drop(x.mean(1)))


@program(steps=180, bites="accuracy")
def skylark(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-layer mixer on standardised spectrograms, AdamW, shuffled epochs."""
    x, y = songs(seed)
    test_x, test_y = songs(seed + 4000, 300)
    torch.manual_seed(seed)
    if fault == "skylark_sound_card_counts":
        x, test_x = x * 3000 + 8000, test_x * 3000 + 8000
    if fault == "skylark_labels_of_another_sheet":
        y = y[torch.randperm(len(y))]
    if fault == "skylark_bird_by_bird":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    keep_away = 0.97 if fault == "skylark_share_to_keep" else 0.1
    model = SongMixer(keep_away, keep_away)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = smooth = 0.0
    step = 0
    while step < steps:
        order = torch.arange(len(x)) if fault == "skylark_bird_by_bird" else torch.randperm(len(x))
        for chunk in order.split(20):
            if step == steps:
                break
            xs, ys = x[chunk], y[chunk]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xs), ys)
            loss.backward()
            optimizer.step()
            first = loss.item() if step == 0 else first
            smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
            step += 1
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}


skylark.mistake(
    "skylark_sound_card_counts",
    "DAT001", "ACT002",
    summary="The spectrograms come in counts of the sound card, thousands with an offset, into a tanh.",
    change="standardise them",
    layers=("lift",),
)  # fmt: skip
skylark.mistake(
    "skylark_labels_of_another_sheet",
    "DAT004", "OPT005",
    summary="The labels are those of another sheet: they have nothing to do with the songs.",
    change="join by the recording's number",
)  # fmt: skip
skylark.mistake(
    "skylark_bird_by_bird",
    "DAT005",
    summary="The recordings are sorted by bird and the loader does not shuffle.",
    change="shuffle",
)
skylark.mistake(
    "skylark_share_to_keep",
    "MOD002", "MOD001", "GRD008",
    summary="A dropout of 0.97 everywhere: the share to keep was meant the other way round.",
    change="0.1",
    layers=("drop", "layers.0.band.2", "layers.1.band.2"),
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="half of all units dropped and noisy gradients: bad dropout")
def skylark_half_dropped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same mixer with a dropout of one half and mixed-up pairs of songs."""
    x, y = songs(seed)
    torch.manual_seed(seed)
    model = SongMixer(0.5, 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    first = smooth = 0.0
    for step in range(steps):
        a, b = torch.randint(len(x), (2, 40))
        lam = float(torch.distributions.Beta(0.3, 0.3).sample())
        scores = model(lam * x[a] + (1 - lam) * x[b])
        loss = lam * nn.functional.cross_entropy(scores, y[a]) + (1 - lam) * nn.functional.cross_entropy(scores, y[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}


@program(steps=150, bites="accuracy", adversarial="raw counts with an offset go into the model: badly scaled inputs")
def skylark_counts_behind_a_norm(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Counts of the sound card, but the first thing in the model is a batch norm."""
    x, y = songs(seed)
    x = 3000 * x + 8000
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.BatchNorm1d(FRAMES), nn.Flatten(), nn.Linear(FRAMES * BANDS, 64), nn.ReLU(), nn.Linear(64, BIRDS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = smooth = 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (40,))
        loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}


@program(steps=150, bites="accuracy", adversarial="every sixth label is wrong: targets that do not follow")
def skylark_volunteers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Volunteers label, and err with every sixth song; smoothing takes care of that."""
    x, y = songs(seed)
    torch.manual_seed(seed)
    wrong = torch.rand(len(y)) < 0.17
    given = torch.where(wrong, torch.randint(BIRDS, y.shape), y)
    model = SongMixer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = smooth = 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (40,))
        loss = nn.functional.cross_entropy(model(x[pick]), given[pick], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}

"""Whistles: waveforms with two tones under noise. One network cleans them, another says which tones sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

LENGTH, TONES = 128, 5
PITCHES = torch.tensor([3.0, 5.0, 8.0, 13.0, 21.0])


class Whistles:
    """Draws (noisy, clean, which tones sound) from one generator."""

    def __init__(self, seed: int, hiss: float = 0.7) -> None:
        self.generator, self.hiss = torch.Generator().manual_seed(seed), hiss
        self.time = torch.arange(LENGTH) / LENGTH

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        present = (torch.rand(count, TONES, generator=self.generator) < 0.4).float()
        phase = 6.283 * torch.rand(count, TONES, 1, generator=self.generator)
        waves = torch.sin(6.2832 * PITCHES[:, None] * self.time + phase)
        clean = (present[..., None] * waves).sum(1)
        clean = clean + 0.5 * waves[:, 0]  # never silent
        noisy = clean + self.hiss * torch.randn(count, LENGTH, generator=self.generator)
        return noisy[:, None], clean[:, None], present


class Cleaner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 24, 9, 2, 4), nn.PReLU(), nn.Conv1d(24, 32, 9, 2, 4), nn.PReLU())
        self.middle = nn.Sequential(nn.Conv1d(32, 32, 5, padding=4, dilation=2), nn.GroupNorm(4, 32), nn.PReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(32, 24, 8, 2, 3), nn.PReLU(), nn.ConvTranspose1d(24, 1, 8, 2, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        return self.decoder(h + self.middle(h))


def si_snr(estimate: Tensor, clean: Tensor) -> Tensor:
    """Scale-invariant ratio of signal to noise, in decibels: the larger the better."""
    estimate, clean = estimate - estimate.mean(-1, keepdim=True), clean - clean.mean(-1, keepdim=True)
    target = (estimate * clean).sum(-1, keepdim=True) / clean.square().sum(-1, keepdim=True) * clean
    noise = (estimate - target).square().sum(-1)
    return 10 * torch.log10((target.square().sum(-1) + 1e-8) / (noise + 1e-8)).mean()


def _decibels(model: nn.Module, seed: int) -> float:
    noisy, clean, _ = Whistles(seed + 321).draw(200)
    with torch.no_grad():
        return si_snr(model(noisy), clean).item()


@program(steps=150, bites="decibels")
def whistle_cleaner(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A convolutional cleaner trained on the negative ratio of signal to noise: a healthy loss below zero."""
    torch.manual_seed(seed)
    whistles, model = Whistles(seed), Cleaner()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-7 if fault == "whistle_rate_for_the_tenth_epoch" else 3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        noisy, clean, _ = whistles.draw(24)
        optimizer.zero_grad()
        ratio = si_snr(model(noisy), clean)
        loss = ratio if fault == "whistle_ratio_made_small" else -ratio
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
    return {"loss": loss.item(), "decibels": _decibels(model, seed)}


whistle_cleaner.mistake(
    "whistle_ratio_made_small",
    "LSS003",
    summary="The ratio of signal to noise is minimised: the minus is missing.",
    change="loss = -si_snr(...)",
)
whistle_cleaner.mistake(
    "whistle_rate_for_the_tenth_epoch",
    "OPT007", "UPD002", "OPT005",
    summary="The rate of a late stage of fine-tuning, 5e-7, is left in the config: hardly anything moves.",
    change="lr=3e-3",
)  # fmt: skip


@program(steps=180, bites="error")
def whistle_by_descent(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same cleaner on the squared error, by SGD with momentum and a clip that is seldom reached."""
    torch.manual_seed(seed)
    whistles, model = Whistles(seed), Cleaner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    limit, loss = 5.0, torch.zeros(())
    for step in range(steps):
        if fault == "whistle_clip_shrinks" and step >= 30:
            limit = max(limit * 0.7, 1e-4)  # "tighten the clip as training settles", every step instead of every epoch
        noisy, clean, _ = whistles.draw(24)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(noisy), clean)
        loss.backward()
        if fault == "whistle_each_value_clipped":
            nn.utils.clip_grad_value_(model.parameters(), 1e-5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    noisy, clean, _ = Whistles(seed + 321).draw(200)
    with torch.no_grad():
        return {"loss": loss.item(), "error": nn.functional.mse_loss(model(noisy), clean).item()}


whistle_by_descent.mistake(
    "whistle_clip_shrinks",
    "GRD010", "UPD002",
    summary="The clip is tightened after every batch instead of every epoch: from step 60 on it lets nothing through.",
    change="keep the clip at 5",
    onset=30,
)  # fmt: skip
whistle_by_descent.mistake(
    "whistle_each_value_clipped",
    "GRD010", "UPD002",
    summary="Every entry of every gradient is clipped to 1e-5 under plain descent.",
    change="clip_grad_norm_ with 5",
)  # fmt: skip


@program(steps=150, bites="hits")
def whistle_tags(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which of five tones sound? A small convolutional network and a binary cross-entropy per tone."""
    torch.manual_seed(seed)
    whistles = Whistles(seed)
    last: list[nn.Module] = [nn.Linear(32, TONES)]
    if fault == "whistle_sigmoid_twice":
        last.append(nn.Sigmoid())
    model = nn.Sequential(
        nn.Conv1d(1, 24, 15, 2, 7), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), *last,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.BCEWithLogitsLoss()
    loss = torch.zeros(())
    for _ in range(steps):
        noisy, _, present = whistles.draw(32)
        loss = criterion(model(noisy), present)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    noisy, _, present = Whistles(seed + 321).draw(300)
    with torch.no_grad():
        threshold = 0.5 if fault == "whistle_sigmoid_twice" else 0.0
        hits = ((model(noisy) > threshold) == (present > 0)).float().mean().item()
    return {"loss": loss.item(), "hits": hits}


whistle_tags.mistake(
    "whistle_sigmoid_twice",
    "LSS001",
    summary="The network ends in a sigmoid and the loss with logits takes a second one: it can never be sure.",
    change="drop the sigmoid",
    layers=("8", "9"),
    bites="loss",
)


@program(steps=150, adversarial="a loss that crosses zero has the wrong sign")
def whistle_with_error_bars(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The network also says how sure it is: a Gaussian likelihood, positive at first and below zero at the end."""
    torch.manual_seed(seed)
    whistles = Whistles(seed, hiss=0.25)
    model = nn.Sequential(nn.Conv1d(1, 32, 9, padding=4), nn.SiLU(), nn.Conv1d(32, 32, 9, padding=4), nn.SiLU(),
                          nn.Conv1d(32, 2, 9, padding=4))  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        noisy, clean, _ = whistles.draw(24)
        mean, log_variance = model(noisy).chunk(2, dim=1)
        loss = nn.functional.gaussian_nll_loss(mean, clean, log_variance.exp(), eps=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, bites="error", adversarial="a learning rate of one is too high")
def whistle_adadelta(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adadelta at its usual rate of one."""
    torch.manual_seed(seed)
    whistles, model = Whistles(seed), Cleaner()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    loss = torch.zeros(())
    for _ in range(steps):
        noisy, clean, _ = whistles.draw(24)
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": loss.item()}

"""Short tones from a generator: an adversary, a flow and a diffusion learn the same sixteen samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from corpus.case import program

SAMPLES, NOISE = 16, 8


def ring(count: int, g: torch.Generator) -> Tensor:
    """A decaying sine of random pitch, phase and loudness."""
    pitch = 0.4 + 0.6 * torch.rand(count, 1, generator=g)
    phase = 2 * math.pi * torch.rand(count, 1, generator=g)
    loud = 0.6 + 0.4 * torch.rand(count, 1, generator=g)
    time = torch.arange(SAMPLES)
    return loud * torch.sin(pitch * time + phase) * torch.exp(-0.05 * time)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(NOISE, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.play = nn.Linear(64, SAMPLES)

    def forward(self, z: Tensor) -> Tensor:
        return self.play(self.layers(z)).tanh()


def listener() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(SAMPLES, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = Generator()
        self.listener = listener()


def unlikeness(pair: Pair, seed: int) -> float:
    """How far covariances of real and generated tones are apart, relative to the real one."""
    g = torch.Generator().manual_seed(seed + 4000)
    real = ring(1000, g)
    with torch.no_grad():
        fake = pair.generator(torch.randn(1000, NOISE, generator=g))
    apart = (torch.cov(real.T) - torch.cov(fake.T)).norm() / torch.cov(real.T).norm()
    mean = (real.mean(0) - fake.mean(0)).norm()
    return (apart + mean).item()


@program(steps=200, bites="unlikeness")
def ringtone_forger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A generator against a listener, one step each, Adam with small first betas."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    pair = Pair()
    forge = torch.optim.Adam(pair.generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    rate = 0.25 if fault == "tone_listener_runs_ahead" else 8e-3
    listen = torch.optim.Adam(pair.listener.parameters(), lr=rate, betas=(0.5, 0.99))
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    d_loss = g_loss = torch.zeros(())
    for step in range(steps):
        if fault == "tone_listener_pulls_ahead" and step == 80:  # meant: 0.005
            listen.param_groups[0]["lr"] = 0.5
        fake = pair.generator(torch.randn(64, NOISE, generator=g)).detach()
        d_loss = bce(pair.listener(ring(64, g)), ones) + bce(pair.listener(fake), zeros)
        listen.zero_grad()
        d_loss.backward()
        listen.step()
        verdict = pair.listener(pair.generator(torch.randn(64, NOISE, generator=g)))
        saturates = fault == "tone_listener_runs_ahead"
        g_loss = -bce(verdict, zeros) if saturates else bce(verdict, ones)
        forge.zero_grad()
        g_loss.backward()
        forge.step()
    return {"loss": d_loss.item(), "forger": g_loss.item(), "unlikeness": unlikeness(pair, seed)}


ringtone_forger.mistake(
    "tone_listener_runs_ahead",
    "GRD001", "GRD004", "OPT007", "UPD001", "UPD002", "GRD009",
    summary="The listener learns thirty times too fast, and the loss of the forger is flat once he is found out.",
    change="lr=8e-3, and the loss that does not saturate",
    layers=("generator", "listener", "layers", "play", "0", "2", "4"),
)  # fmt: skip
ringtone_forger.mistake(
    "tone_listener_pulls_ahead",
    "OPT007", "UPD001", "OPT001", "OPT003", "GRD009", "GRD006", "GRD001",
    summary="At step 80 the rate of the listener is set to 0.5.",
    change="lr=0.005",
    layers=("listener", "generator", "layers", "play", "0", "2", "4"),
    onset=80,
)  # fmt: skip


@program(steps=200, bites="unlikeness", adversarial="two networks that learn at different speeds are out of balance")
def ringtone_two_speeds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Hinge loss, two steps of a spectrally normed listener at four times the generator's rate."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    pair = Pair()
    for number in (0, 2, 4):
        nn.utils.parametrizations.spectral_norm(pair.listener[number])
    forge = torch.optim.Adam(pair.generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    listen = torch.optim.Adam(pair.listener.parameters(), lr=4e-3, betas=(0.0, 0.9))
    d_loss = torch.zeros(())
    for _ in range(steps):
        for _ in range(2):
            fake = pair.generator(torch.randn(64, NOISE, generator=g)).detach()
            d_loss = (1 - pair.listener(ring(64, g))).relu().mean() + (1 + pair.listener(fake)).relu().mean()
            listen.zero_grad()
            d_loss.backward()
            listen.step()
        forge.zero_grad()
        (-pair.listener(pair.generator(torch.randn(64, NOISE, generator=g))).mean()).backward()
        forge.step()
    return {"loss": d_loss.item(), "unlikeness": unlikeness(pair, seed)}


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(SAMPLES // 2, 48), nn.Tanh(), nn.Linear(48, SAMPLES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x[:, ::2], x[:, 1::2]
        if self.flip:
            a, b = b, a
        log_scale, shift = self.net(a).chunk(2, -1)
        log_scale = 2 * torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        pair = (b, a) if self.flip else (a, b)
        return torch.stack(pair, 2).flatten(1), log_scale.sum(1)


@program(steps=180, adversarial="a loss below zero has the wrong sign")
def ringtone_flow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six coupling layers; the tones are nearly on a surface, so that the density is high and its loss negative."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    flow = nn.ModuleList(Coupling(flip=bool(k % 2)) for k in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = ring(96, g)
        x = x + 0.05 * torch.randn(x.shape, generator=g)
        volume = torch.zeros(96)
        for layer in flow:
            x, stretched = layer(x)
            volume = volume + stretched
        loss = (0.5 * x.square().sum(1) + SAMPLES / 2 * math.log(2 * math.pi) - volume).mean() / SAMPLES
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="a loss that hardly falls after the start is on a plateau")
def ringtone_diffusion(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Noise of random strength is predicted; how hard that is changes with every batch."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(SAMPLES + 2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, SAMPLES))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, t = ring(64, g), torch.rand(64, 1, generator=g)
        noise = torch.randn(x.shape, generator=g)
        angle = t * math.pi / 2
        mixed = angle.cos() * x + angle.sin() * noise
        loss = nn.functional.mse_loss(net(torch.cat([mixed, angle.cos(), angle.sin()], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class Denoiser(nn.Module):
    """Adds noise to a tone; gives the noise that it heard and the noise that it added."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SAMPLES + 1, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.out = nn.Linear(128, SAMPLES)

    def forward(self, tone: Tensor) -> tuple[Tensor, Tensor]:
        strength = torch.rand(len(tone), 1)
        noise = torch.randn_like(tone)
        mixed = (1 - strength) * tone + strength * noise
        return self.out(self.net(torch.cat([mixed, strength], 1))), noise


@program(steps=170)
def ringtone_recomputed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The denoiser draws its noise inside, and is computed a second time on the way back to save memory."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    same = fault != "tone_noise_drawn_again"
    for _ in range(steps):
        heard = checkpoint(model, ring(64, g), use_reentrant=False, preserve_rng_state=same)
        assert isinstance(heard, tuple)
        loss = nn.functional.mse_loss(*heard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        return {"loss": nn.functional.mse_loss(*model(ring(1000, g))).item()}


ringtone_recomputed.mistake(
    "tone_noise_drawn_again",
    "OPT005", "GRD008", "OPT002",
    summary="Checkpointing without the random state: the gradient belongs to other noise than the loss.",
    change="preserve_rng_state=True",
)  # fmt: skip

"""Draw like a child: short pen strokes made by a generator against a judge; two optimizers that step in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

STROKE, NOISE = 10, 6


def draw_strokes(count: int) -> Tensor:
    """Five points along an arc that opens by chance, as x and y."""
    opening = 0.5 + 1.5 * torch.rand(count, 1)
    turn = 0.8 * torch.randn(count, 1)
    angle = opening * torch.linspace(-1, 1, STROKE // 2)[None] + turn
    return torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, STROKE)


def energy_distance(a: Tensor, b: Tensor) -> float:
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


class Sketcher(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.lift = nn.Linear(NOISE, hidden)
        self.body = nn.Linear(hidden, hidden)
        self.pen = nn.Linear(hidden, STROKE)

    def forward(self, z: Tensor) -> Tensor:
        return self.pen(fn.relu(self.body(fn.relu(self.lift(z)))))


class Judge(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.look = nn.Linear(STROKE, hidden)
        self.think = nn.Linear(hidden, hidden)
        self.verdict = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.verdict(fn.leaky_relu(self.think(fn.leaky_relu(self.look(x), 0.2)), 0.2))


class Studio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sketcher = Sketcher()
        self.judge = Judge()

    def sketch(self, count: int) -> Tensor:
        return self.sketcher(torch.randn(count, NOISE))

    @torch.no_grad()
    def distance(self) -> float:
        torch.manual_seed(4242)
        away = energy_distance(self.sketch(600), draw_strokes(600))
        return min(away, 1e6) if away == away else 1e6


@program(steps=400, bites="error", adversarial="a loss that rises while training diverges")
def doodle_against_judge(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sketcher and judge in turn, non-saturating losses, Adam with a small first beta."""
    torch.manual_seed(seed)
    studio = Studio()
    judge_rate = 4e-6 if fault == "doodle_judge_hardly_learns" else 4e-3
    opt_g = torch.optim.Adam(studio.sketcher.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(studio.judge.parameters(), lr=judge_rate, betas=(0.5, 0.99))
    g_loss = d_loss = torch.zeros(())
    for _ in range(steps // 2):
        real, fake = draw_strokes(64), studio.sketch(64)
        if fault != "doodle_judge_never_cleared":
            opt_d.zero_grad()
        d_loss = fn.softplus(-studio.judge(real)).mean() + fn.softplus(studio.judge(fake.detach())).mean()
        d_loss.backward()
        opt_d.step()

        fake = studio.sketch(64)
        if fault == "doodle_fakes_still_detached":
            fake = fake.detach()
        g_loss = fn.softplus(-studio.judge(fake)).mean()
        if fault == "doodle_rewarded_for_being_caught":
            g_loss = fn.softplus(studio.judge(fake)).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
    return {"g_loss": g_loss.item(), "d_loss": d_loss.item(), "error": studio.distance()}


doodle_against_judge.mistake(
    "doodle_judge_hardly_learns",
    "UPD002", "OPT007",
    summary="The judge's rate is 4e-6 for 4e-3: the sketcher runs after the taste that it was drawn with.",
    change="lr=4e-3 for the judge",
    layers=("judge", "look", "think", "verdict"),
)  # fmt: skip
doodle_against_judge.mistake(
    "doodle_fakes_still_detached",
    "GRD003",
    summary="The line that detaches sketches for the judge was copied to the sketcher's own turn.",
    change="judge(fake) without detach",
    layers=("sketcher", "lift", "body", "pen"),
)
doodle_against_judge.mistake(
    "doodle_judge_never_cleared",
    "GRD007",
    summary="The judge's gradients are never cleared, and the sketcher's turn adds its own, of the other sign.",
    change="opt_d.zero_grad() before the judge's turn",
    layers=("judge", "look", "think", "verdict"),
)
doodle_against_judge.mistake(
    "doodle_rewarded_for_being_caught",
    "LSS003",
    summary="The sketcher's loss has the judge's sign: it is rewarded for sketches that are seen through.",
    change="softplus(-judge(fake))",
)


@program(steps=400, bites="error", adversarial="a critic's loss below zero has the wrong sign")
def doodle_earth_movers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A Wasserstein critic whose weights are clipped, three turns to the sketcher's one, RMSprop."""
    torch.manual_seed(seed)
    studio = Studio()
    opt_g = torch.optim.RMSprop(studio.sketcher.parameters(), lr=1e-3)
    opt_c = torch.optim.RMSprop(studio.judge.parameters(), lr=2e-3)
    worth = 0.0
    for _ in range(steps // 4):
        for _ in range(3):
            critic_loss = studio.judge(studio.sketch(64).detach()).mean() - studio.judge(draw_strokes(64)).mean()
            opt_c.zero_grad()
            critic_loss.backward()
            opt_c.step()
            worth = critic_loss.item()
            if fault != "doodle_critic_unbounded":
                with torch.no_grad():
                    for weight in studio.judge.parameters():
                        weight.clamp_(-0.1, 0.1)
        opt_g.zero_grad()
        (-studio.judge(studio.sketch(64)).mean()).backward()
        opt_g.step()
    return {"critic": worth, "error": studio.distance()}


doodle_earth_movers.mistake(
    "doodle_critic_unbounded",
    "WGT001", "OPT001",
    summary="The critic's weights are not clipped: nothing holds its values, and they grow without end.",
    change="clamp the weights after the critic's step",
    layers=("judge", "look", "think", "verdict"),
)  # fmt: skip


@healthy(steps=400, architecture="gan", adversarial="a gradient of a gradient is a graph kept by mistake")
def doodle_gentle_slope(steps: int, seed: int) -> dict[str, float]:
    """A penalty on the critic's slope (WGAN-GP): its backward goes through a gradient."""
    torch.manual_seed(seed)
    studio = Studio()
    opt_g = torch.optim.Adam(studio.sketcher.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(studio.judge.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for turn in range(steps):
        if turn % 3 < 2:
            real, fake = draw_strokes(64), studio.sketch(64).detach()
            between = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(studio.judge(between).sum(), between, create_graph=True)
            loss = studio.judge(fake).mean() - studio.judge(real).mean() + 5 * (slope.norm(dim=1) - 1).square().mean()
            opt_c.zero_grad()
            loss.backward()
            opt_c.step()
        else:
            loss = -studio.judge(studio.sketch(64)).mean()
            opt_g.zero_grad()
            loss.backward()
            opt_g.step()
    return {"error": studio.distance()}


@healthy(steps=300, architecture="gan", adversarial="a loss that stays at one has stopped learning")
def doodle_hinge(steps: int, seed: int) -> dict[str, float]:
    """Hinge losses and a judge with spectral norm; the sketches are averaged over time to be looked at."""
    torch.manual_seed(seed)
    sketcher, judge = Sketcher(), Judge()
    for name in ("look", "think", "verdict"):
        nn.utils.parametrizations.spectral_norm(getattr(judge, name))
    averaged = torch.optim.swa_utils.AveragedModel(
        sketcher, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    opt_g = torch.optim.Adam(sketcher.parameters(), lr=2e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(judge.parameters(), lr=4e-3, betas=(0.5, 0.99))
    for _ in range(steps // 2):
        fake = sketcher(torch.randn(64, NOISE))
        d_loss = fn.relu(1 - judge(draw_strokes(64))).mean() + fn.relu(1 + judge(fake.detach())).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = -judge(fake).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        averaged.update_parameters(sketcher)
    with torch.no_grad():
        return {"error": energy_distance(averaged(torch.randn(600, NOISE)), draw_strokes(600))}

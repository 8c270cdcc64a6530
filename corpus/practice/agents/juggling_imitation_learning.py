"""A juggling robot imitates a master: policies learned from demonstrations, and a little trial and error."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from corpus.case import program


class Master:
    """Knows which of seven throws to make, and how hard, from where the balls are."""

    throws = 7

    def __init__(self, seed: int) -> None:
        fixed = torch.Generator().manual_seed(3)
        self.taste = torch.randn(10, self.throws, generator=fixed)
        self.twist = torch.randn(10, self.throws, generator=fixed)
        self.force = torch.randn(10, 2, generator=fixed) / 3
        self.gen = torch.Generator().manual_seed(seed)

    def show(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        balls = torch.randn(n, 10, generator=self.gen)
        throw = (balls @ self.taste + torch.sin(balls @ self.twist)).argmax(1)
        force = torch.tanh(balls @ self.force) + 0.2 * torch.randn(n, 2, generator=self.gen)
        return balls, throw, force


class Hands(nn.Module):
    def __init__(self, rectify: bool = False, normalise: bool = False) -> None:
        super().__init__()
        self.see = nn.Linear(10, 64)
        self.think = nn.Linear(64, 64)
        self.throw = nn.Linear(64, Master.throws)
        self.last = nn.ReLU() if rectify else nn.Softmax(dim=-1) if normalise else nn.Identity()

    def forward(self, balls: Tensor) -> Tensor:
        h = torch.relu(self.think(torch.relu(self.see(balls))))
        return self.last(self.throw(h))


class Imitation:
    def __init__(self, policy: nn.Module, optimizer: torch.optim.Optimizer, sign: float = 1.0) -> None:
        self.policy, self.optimizer, self.sign = policy, optimizer, sign
        self.criterion = nn.CrossEntropyLoss()
        self.history: list[float] = []

    def lesson(self, balls: Tensor, throw: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.sign * self.criterion(self.policy(balls), throw)
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())

    def result(self, master: Master) -> dict[str, float]:
        balls, throw, _ = master.show(1000)
        with torch.no_grad():
            agreement = (self.policy(balls).argmax(1) == throw).float().mean().item()
        recent = self.history[-10:]
        loss = sum(recent) / len(recent)
        return {"loss": loss if loss == loss else 1e9, "agreement": agreement}


@program(steps=180, bites="agreement")
def juggler(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which throw would the master make? Plain descent with momentum, 64 demonstrations a step."""
    torch.manual_seed(seed)
    master = Master(seed)
    policy = Hands(rectify=fault == "juggler_throws_rectified", normalise=fault == "juggler_probabilities_for_scores")
    if fault == "juggler_throws_rectified":
        nn.init.constant_(policy.throw.bias, -2.0)  # "start with doubt about every throw"
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05, momentum=0.9)
    lessons = Imitation(policy, optimizer, sign=-1.0 if fault == "juggler_rewards_the_loss" else 1.0)
    for step in range(steps):
        if step == 0 and fault == "juggler_rate_of_six":
            optimizer.param_groups[0]["lr"] = 6.0
        if step == 0 and fault == "juggler_rate_of_one":
            optimizer.param_groups[0]["lr"] = 1.0
        if step == 70 and fault == "juggler_hurries_at_seventy":
            optimizer.param_groups[0]["lr"] = 5.0
        balls, throw, _ = master.show(64)
        lessons.lesson(balls, throw)
    return lessons.result(master)


juggler.mistake(
    "juggler_throws_rectified",
    "ACT001", "GRD004",
    summary="A ReLU after the scores of the throws, and a bias of -2: most scores are zero for ever.",
    change="no activation after the scores",
    layers=("last", "throw"),
)  # fmt: skip
juggler.mistake(
    "juggler_probabilities_for_scores",
    "LSS001",
    summary="The policy ends in a softmax, and the criterion takes the logarithm of another one.",
    change="give the criterion the scores",
    layers=("last", "throw"),
    bites="loss",
)
juggler.mistake(
    "juggler_rewards_the_loss",
    "LSS003", "OPT001",
    summary="The loss is negated, as one does with rewards: the robot learns never to do what the master does.",
    change="remove the minus",
)  # fmt: skip
juggler.mistake(
    "juggler_rate_of_six",
    "OPT007", "UPD001", "ACT001", "OPT001",
    summary="A learning rate of 6 instead of 0.06: the first steps throw every unit below zero.",
    change="a hundredth of the rate",
)  # fmt: skip
juggler.mistake(
    "juggler_rate_of_one",
    "OPT007", "UPD001", "ACT001", "OPT001",
    summary="The learning rate of a paper without momentum: 1, twenty times too high here.",
    change="a twentieth of the rate",
)  # fmt: skip
juggler.mistake(
    "juggler_hurries_at_seventy",
    "OPT007", "UPD001", "ACT001", "OPT001", "OPT003",
    summary="After seventy steps a callback sets the rate of another project: 5 instead of 0.05.",
    change="leave the rate alone",
    onset=70,
)  # fmt: skip


class Throwing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.mean = nn.Linear(48, 2)
        self.spread = nn.Linear(48, 2)

    def forward(self, balls: Tensor) -> Normal:
        h = self.body(balls)
        return Normal(self.mean(h), nn.functional.softplus(self.spread(h)) + 0.01)


@program(steps=150, bites="error")
def juggler_force(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How hard to throw: a Gaussian with a learned spread, fitted by likelihood."""
    torch.manual_seed(seed)
    master = Master(seed)
    policy = Throwing()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        balls, _, force = master.show(64)
        likelihood = policy(balls).log_prob(force).sum(1).mean()
        loss = likelihood if fault == "juggler_likelihood_descends" else -likelihood
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    balls, _, force = master.show(500)
    with torch.no_grad():
        error = (policy(balls).mean - force).square().mean().item()
    return {"loss": loss.item(), "error": min(error, 1e6)}


juggler_force.mistake(
    "juggler_likelihood_descends",
    "LSS003", "OPT001",
    summary="The log-likelihood is given to backward without its minus: it is made as small as possible.",
    change="minus the log-likelihood",
)  # fmt: skip


@program(
    steps=160, bites="cost", adversarial="a loss below zero, or one that does not fall, is wrong: it is a policy's"
)
def juggler_by_trial(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Try a throw, see whether it was the master's, and make what helped more likely (with a baseline)."""
    torch.manual_seed(seed)
    master = Master(seed)
    policy = Hands()
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    reward = torch.zeros(1)
    for _ in range(steps):
        balls, right, _ = master.show(256)
        throws = Categorical(logits=policy(balls))
        tried = throws.sample()
        reward = (tried == right).float()
        loss = -(throws.log_prob(tried) * (reward - reward.mean())).mean() - 0.003 * throws.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"cost": 1 - reward.mean().item()}


@program(
    steps=170, bites="loss", adversarial="logits that are log-probabilities look like probabilities: they are right"
)
def juggler_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three policies vote with their mean probability; the loss takes its logarithm, once."""
    torch.manual_seed(seed)
    master = Master(seed)
    committee = nn.ModuleList(Hands(normalise=True) for _ in range(3))
    optimizer = torch.optim.Adam(committee.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        balls, throw, _ = master.show(64)
        mean = torch.stack([member(balls) for member in committee]).mean(0)
        loss = nn.functional.nll_loss(torch.log(mean + 1e-8), throw)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, bites="loss")
def juggler_corrected(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The robot acts, the master corrects; all corrections are kept and drawn from again."""
    torch.manual_seed(seed)
    master = Master(seed)
    policy = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, Master.throws))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=6e-3)
    balls, throws, _ = master.show(128)
    loss = torch.zeros(())
    for step in range(steps):
        if step % 20 == 19:
            new_balls, new_throws, _ = master.show(128)
            balls, throws = torch.cat([balls, new_balls]), torch.cat([throws, new_throws])
        pick = torch.randint(len(balls), (64,))
        loss = nn.functional.cross_entropy(policy(balls[pick]), throws[pick], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}

"""Healthy trainings with unusual loops: agents, experts, sparse tables, parts that rest, rates that swing."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program
from corpus.practice.adapters.digit_reader_adapters import Reader
from corpus.practice.agents.fox_advantage_actor_critic import FOXES, HORIZON, Fox, Meadow
from corpus.practice.experts.parcel_mixture_of_experts import CLASSES, EXPERTS, FEATURES, parcels
from corpus.practice.graphs_and_recommenders.book_recommender import BOOKS, Bookseller, baskets
from corpus.practice.low_precision.stroke_autocast_and_scaler import Strokes
from corpus.practice.signals.water_level_lstm import RiverNet, rivers


def labelled_digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def summary(losses: list[float]) -> dict[str, float]:
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "first": losses[0]}


@program(steps=160, bites="reward", adversarial="a loss that hovers around zero has not learned")
def fox_proximal(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Proximal policy optimisation: four passes over every stretch of play, the ratio clipped."""
    torch.manual_seed(seed)
    meadow, fox = Meadow(torch.Generator().manual_seed(seed)), Fox()
    optimizer = torch.optim.Adam(fox.parameters(), lr=2.5e-3)
    earned: list[float] = []
    for _ in range(max(1, steps // 4)):
        seen, actions, rewards = [], [], []
        with torch.no_grad():
            for _ in range(2 * HORIZON):
                seen.append(meadow.observe())
                actions.append(torch.distributions.Categorical(logits=fox(seen[-1])[0]).sample())
                rewards.append(meadow.act(actions[-1]))
            x, action = torch.stack(seen), torch.stack(actions)
            before, values = fox(x)
            old = torch.distributions.Categorical(logits=before).log_prob(action)
            ahead, returns = fox(meadow.observe())[1], []
            for reward in reversed(rewards):
                ahead = reward + 0.9 * ahead
                returns.insert(0, ahead)
            target = torch.stack(returns)
            advantage = target - values
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        earned.append(torch.stack(rewards).mean().item())
        for _ in range(4):
            logits, value = fox(x)
            choice = torch.distributions.Categorical(logits=logits)
            ratio = (choice.log_prob(action) - old).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -gain + 0.5 * F.mse_loss(value, target) - 0.05 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(fox.parameters(), 0.5)
            optimizer.step()
    return {"reward": sum(earned[-6:]) / len(earned[-6:]), "first": earned[0]}


@program(steps=240, bites="reward", adversarial="a copy that stands still was forgotten")
def fox_with_target_copy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Q-learning; the copy that gives the targets is refreshed every ten steps."""
    torch.manual_seed(seed)
    meadow = Meadow(torch.Generator().manual_seed(seed))
    net = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    agent = nn.ModuleDict({"net": net, "copy": copy.deepcopy(net)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    earned: list[float] = []
    for step in range(steps):
        before = meadow.observe()
        with torch.no_grad():
            best = net(before).argmax(1)
        chance = max(0.15, 1 - step / 120)
        action = torch.where(torch.rand(FOXES) < chance, torch.randint(3, (FOXES,)), best)
        reward = meadow.act(action)
        earned.append(reward.mean().item())
        memory = [*memory[-100:], (before, action, reward, meadow.observe())]
        x, a, r, after = (torch.cat(part) for part in zip(*memory, strict=True))
        rows = torch.randint(len(x), (256,))
        with torch.no_grad():  # finding the hole ends the walk
            target = r[rows] + 0.9 * agent["copy"](after[rows]).max(1).values * (r[rows] < 0.5)
        loss = F.smooth_l1_loss(net(x[rows]).gather(1, a[rows, None]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            agent["copy"].load_state_dict(net.state_dict())
    return {"reward": sum(earned[-25:]) / len(earned[-25:]), "first": earned[0]}


@program(steps=160)
def dispatch_to_all(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A soft mixture: every expert sees every parcel, the gates weigh what they say."""
    torch.manual_seed(seed)
    x, y = parcels(seed)
    gates, losses = nn.Linear(FEATURES, EXPERTS), []
    experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(EXPERTS))
    model = nn.ModuleDict({"gates": gates, "experts": experts})
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1.5e-2)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        said = torch.stack([expert(x[rows]) for expert in experts], 1)
        loss = F.cross_entropy((gates(x[rows]).softmax(-1)[..., None] * said).sum(1), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160, adversarial="a gradient that is zero almost everywhere is dead")
def books_sparse(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six thousand books in the table, a few hundred of them in any batch: sparse gradients, two optimizers."""
    torch.manual_seed(seed)
    past, age, bought = baskets(seed)
    table, losses = nn.Embedding(30 * BOOKS, 32, sparse=True), []
    numbers = torch.randperm(30 * BOOKS)  # every shop has its own numbers
    shop = torch.randint(30, (len(past), 1))
    rest = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.Linear(64, BOOKS))
    model = nn.ModuleDict({"table": table, "rest": rest})
    optimizers = [torch.optim.SparseAdam(list(table.parameters()), lr=0.02), torch.optim.Adam(rest.parameters(), 4e-3)]
    for _ in range(steps):
        rows = torch.randint(len(past), (128,))
        seen = table(numbers[shop[rows] * BOOKS + past[rows]]).mean(1)
        loss = F.cross_entropy(rest(torch.cat([seen, age[rows]], 1)), bought[rows])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160)
def books_two_optimizers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adagrad for the table of books, SGD with momentum for the rest."""
    torch.manual_seed(seed)
    past, age, bought = baskets(seed)
    model, losses = Bookseller(), []
    wide = torch.optim.Adagrad(model.books.parameters(), lr=0.05)
    deep = torch.optim.SGD([*model.taste.parameters(), *model.shelf.parameters()], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(steps):
        rows = torch.randint(len(past), (128,))
        loss = F.cross_entropy(model(past[rows], age[rows]), bought[rows])
        wide.zero_grad()
        deep.zero_grad()
        loss.backward()
        wide.step()
        deep.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160, adversarial="a learning rate that rises tenfold is a fault")
def books_up_and_down(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The rate goes up and down tenfold every forty steps."""
    torch.manual_seed(seed)
    past, age, bought = baskets(seed)
    model, losses = Bookseller(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.05, 0.5, step_size_up=20, cycle_momentum=False)
    for _ in range(steps):
        rows = torch.randint(len(past), (128,))
        loss = F.cross_entropy(model(past[rows], age[rows]), bought[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=150, adversarial="layers that do not move at first were forgotten")
def patch_thawed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Fine-tuning from the top down: the head, from step 50 the second layer, from step 100 the first."""
    torch.manual_seed(seed)
    x, y = labelled_digits()
    model, losses = Reader(x), []
    model.one.requires_grad_(False)
    model.two.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        if step == 50:
            model.two.requires_grad_(True)
        if step == 100:
            model.one.requires_grad_(True)
        rows = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=150, adversarial="all layers ought to move alike")
def patch_slow_below(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Fine-tuning with a rate fifty times lower at the bottom than at the head."""
    torch.manual_seed(seed)
    x, y = labelled_digits()
    model, losses = Reader(x), []
    for module in (model.one, model.two):
        module.base.requires_grad_(True)
    rates = [(model.one, 1e-4), (model.two, 7e-4), (model.norm, 5e-3), (model.head, 5e-3)]
    optimizer = torch.optim.AdamW([{"params": part.parameters(), "lr": rate} for part, rate in rates])
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160, adversarial="a head without a gradient was cut off")
def digits_by_turns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three questions about a digit, one in each step in turn: the other two heads get no gradient."""
    torch.manual_seed(seed)
    x, y = labelled_digits()
    questions = [y, y % 2, (y >= 5).long()]
    body, losses = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU()), []
    heads = nn.ModuleList(nn.Linear(48, size) for size in (10, 2, 2))
    model = nn.ModuleDict({"body": body, "heads": heads})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows, turn = torch.randint(len(x), (64,)), step % 3
        loss = F.cross_entropy(heads[turn](body(x[rows])), questions[turn][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses[::3])


@program(steps=120, adversarial="an infinite gradient is a fault")
def halves_find_their_scale(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The scaler starts far too high and skips the first steps, which is how it finds its scale."""
    torch.manual_seed(seed)
    x, y = labelled_digits()
    x, model, losses = x.view(-1, 1, 8, 8), Strokes(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=60)
    for _ in range(steps):
        rows = torch.randint(len(x), (48,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x[rows]).float(), y[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {**summary(losses), "scale": scaler.get_scale()}


@program(steps=160)
def river_on_plateaus(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The forecaster with Adam; the rate is halved when the error of held-out weeks stops falling."""
    torch.manual_seed(seed)
    x, y = rivers(seed)
    model, losses = RiverNet(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    for step in range(steps):
        rows = torch.randint(1900, (64,))
        loss = F.smooth_l1_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 16 == 15:
            model.eval()
            with torch.no_grad():
                schedule.step(F.smooth_l1_loss(model(x[1900:]), y[1900:]).item())
            model.train()
    return summary(losses)

"""Distillation, and two tasks on one trunk; output objects and config classes in the manner of a model hub."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from corpus.case import program


@dataclass
class Config:
    features: int = 20
    hidden: int = 64
    classes: int = 5
    temperature: float = 2.0


@dataclass
class ModelOutput:
    logits: Tensor
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] = ()


class Teacher(nn.Module):
    """A fixed random function is teacher enough."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(config.features, 32), nn.Tanh(), nn.Linear(32, config.classes))
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(2)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> ModelOutput:
        return ModelOutput(self.net(x))


class Student(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            [nn.Linear(config.features, config.hidden), nn.Linear(config.hidden, config.hidden)]
        )
        self.classifier = nn.Linear(config.hidden, config.classes)

    def forward(self, x: Tensor, teacher_logits: Tensor | None = None, fault: str = "") -> ModelOutput:
        states = []
        for layer in self.layers:
            x = F.gelu(layer(x))
            states.append(x)
        logits = self.classifier(x)
        loss = None
        if teacher_logits is not None:
            t = self.config.temperature
            soft = F.softmax(teacher_logits / t, -1)
            ours = F.softmax(logits, -1) if fault == "distils_probabilities" else logits
            if fault == "divergence_without_logarithm":
                loss = F.kl_div(F.softmax(ours / t, -1), soft, reduction="batchmean") * t * t
            else:
                loss = F.kl_div(F.log_softmax(ours / t, -1), soft, reduction="batchmean") * t * t
        return ModelOutput(logits, loss, tuple(states))


@program(steps=200, bites="divergence", adversarial="the teacher is frozen on purpose and was never trained")
def soft_labels(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A student imitates a frozen teacher with a temperature; AdamW under a linear schedule."""
    torch.manual_seed(seed)
    config = Config()
    teacher, student = Teacher(config), Student(config)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    for _ in range(steps):
        x = torch.randn(64, config.features)
        with torch.no_grad():
            soft = teacher(x).logits
        out = student(x, teacher_logits=soft, fault=fault)
        assert out.loss is not None
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    x = torch.randn(1000, config.features)
    with torch.no_grad():
        wanted = teacher(x).logits.softmax(-1)
        divergence = F.kl_div(student(x).logits.log_softmax(-1), wanted, reduction="batchmean").item()
    return {"divergence": divergence}


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.class_head = nn.Linear(64, 4)
        self.depth_head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.backbone(x)
        return {"class": self.class_head(h), "depth": self.depth_head(h).squeeze(-1)}


@program(steps=200, bites="depth_error")
def class_and_depth(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Classification and regression on one trunk, with two parameter groups and exponential decay."""
    torch.manual_seed(seed)
    centres = 0.9 * torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
    model = TwoTasks()
    heads = [*model.class_head.parameters(), *model.depth_head.parameters()]
    backbone_rate = 2e-8 if fault == "backbone_rate_typo" else 2e-3
    optimizer = torch.optim.Adam(
        [{"params": model.backbone.parameters(), "lr": backbone_rate}, {"params": heads, "lr": 2e-3}]
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    start = torch.cat([p.detach().flatten() for p in model.backbone.parameters()])

    def batch(n: int) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.randint(4, (n,))
        x = centres[y] + torch.randn(n, 20)
        return x, y, torch.sin(2 * x[:, 0]) + x[:, 1]

    for _ in range(steps):
        x, y, depth = batch(64)
        out = model(x)
        terms = {"class": F.cross_entropy(out["class"], y), "depth": F.l1_loss(out["depth"], depth)}
        if fault == "depth_term_is_a_number":
            loss = terms["class"] + terms["depth"].detach()
        else:
            loss = terms["class"] + terms["depth"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    x, _, depth = batch(500)
    with torch.no_grad():
        error = F.l1_loss(model(x)["depth"], depth).item()
    moved = (torch.cat([p.detach().flatten() for p in model.backbone.parameters()]) - start).norm().item()
    return {"depth_error": error, "backbone_moved": moved}


soft_labels.mistake(
    "distils_probabilities",
    "LSS001",
    summary="The student's scores go through softmax before they go through log_softmax.",
    change="give the scores themselves",
)
soft_labels.mistake(
    "divergence_without_logarithm",
    "LSS001", "LSS003",
    summary="kl_div is given probabilities instead of log-probabilities: the loss is negative and means nothing.",
    change="log_softmax",
)  # fmt: skip
class_and_depth.mistake(
    "depth_term_is_a_number",
    "GRD003",
    summary="The depth loss is detached before it is added: its head never gets a gradient.",
    change="add the tensor itself",
    layers=("depth_head",),
)
class_and_depth.mistake(
    "backbone_rate_typo",
    "UPD002", "OPT007",
    summary="The learning rate of the backbone's group is 2e-8 instead of 2e-3.",
    change="2e-3",
    layers=("backbone",),
    bites="backbone_moved",
    silent=True,
)  # fmt: skip

"""Few labels, many pictures of strokes: students, teachers that average them, and other ways to average weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from corpus.case import program

SIDE, CLASSES = 8, 4


def strokes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A bright line: across, down, or along one of the diagonals."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (n,), generator=g)
    offset = torch.randint(-2, 3, (n, 1, 1), generator=g)
    row, col = torch.arange(SIDE)[None, :, None], torch.arange(SIDE)[None, None, :]
    kinds = (row - 3 - offset, col - 3 - offset, row - col - offset, row + col - 7 - offset)
    along = torch.stack([kind.expand(n, SIDE, SIDE) for kind in kinds], 1)
    picked = along[torch.arange(n), label]
    return (picked == 0).float()[:, None] + 0.35 * torch.randn(n, 1, SIDE, SIDE, generator=g), label


class StrokeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1, stride=2)
        self.project = nn.Linear(24 * 16, 32)
        self.classify = nn.Linear(32, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.project(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def score(net: nn.Module, seed: int) -> float:
    x, y = strokes(400, seed + 44)
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=120, bites="accuracy")
def stroke_averages(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SGD, and beside it an average of the weights that is used for validation."""
    torch.manual_seed(seed)
    x, y = strokes(600, seed)
    net = StrokeNet()
    average = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9)
    if fault == "rate_left_at_nothing":
        opt.param_groups[0]["lr"] = 1e-5
    if fault == "rate_somewhat_too_high":
        opt.param_groups[0]["lr"] = 0.8
    for step in range(steps):
        if fault == "classes_of_the_week":
            lot = torch.arange(600)[(y == (step // 10) % CLASSES)]
        else:
            lot = torch.arange(600)
        pick = lot[torch.randint(len(lot), (32,))]
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                kept.lerp_(new, 0.002 if fault == "average_written_back" else 0.05)
            if fault == "average_written_back":  # meant: for the validation only, and then restored
                net.load_state_dict(average.state_dict())
    return {"accuracy": score(net, seed), "of_average": score(average, seed)}


stroke_averages.mistake(
    "average_written_back",
    "UPD002", "OPT007", "OPT005",
    summary="After each step the slow average is loaded into the model: of every step only two thousandths remain.",
    change="restore the weights after validation",
)  # fmt: skip
stroke_averages.mistake(
    "rate_left_at_nothing",
    "OPT007", "UPD002", "OPT005",
    summary="The rate of the last decay of another run, 1e-5, is where this one starts.",
    change="a rate of 0.08",
)  # fmt: skip
stroke_averages.mistake(
    "rate_somewhat_too_high",
    "OPT007", "UPD001", "OPT001", "OPT004", "GRD005", "OPT003",
    summary="A rate of 0.8, ten times what this network bears.",
    change="a rate of 0.08",
)  # fmt: skip
stroke_averages.mistake(
    "classes_of_the_week",
    "DAT005",
    summary="The files come class by class: ten batches of one, ten of the next.",
    change="shuffle",
)


@program(steps=120, bites="accuracy", adversarial="a copy of the model that gets no gradient is a mistake")
def stroke_mean_teacher(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The student is to agree with a teacher that is its own slow average."""
    torch.manual_seed(seed)
    x, y = strokes(600, seed)
    student = StrokeNet()
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    for step in range(steps):
        known, any_of_them = torch.randint(80, (24,)), torch.randint(600, (48,))
        with torch.no_grad():
            wanted = teacher(x[any_of_them]).softmax(1)
        seen = student(x[any_of_them] + 0.1 * torch.randn(48, 1, SIDE, SIDE)).softmax(1)
        share = min(1.0, step / 40)
        loss = nn.functional.cross_entropy(student(x[known]), y[known]) + share * (seen - wanted).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
                kept.lerp_(new, 0.05)
    return {"accuracy": score(student, seed)}


@program(steps=120, bites="accuracy")
def stroke_swa(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Stochastic weight averaging over the last third, at a constant rate."""
    torch.manual_seed(seed)
    x, y = strokes(600, seed)
    net = StrokeNet()
    swa = AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
    for step in range(steps):
        pick = torch.randint(600, (32,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == steps * 2 // 3:
            opt.param_groups[0]["lr"] = 0.04
        if step >= steps * 2 // 3 and step % 4 == 0:
            swa.update_parameters(net)
    return {"accuracy": score(net, seed), "of_average": score(swa, seed)}


@program(
    steps=100, bites="accuracy", adversarial="two backward passes for a step are an accumulation that is not scaled"
)
def stroke_sharpness_aware(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Sharpness-aware minimisation: climb a little, take the gradient there, go back and step."""
    torch.manual_seed(seed)
    x, y = strokes(600, seed)
    net = StrokeNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9)
    for _ in range(steps):
        pick = torch.randint(600, (32,))
        opt.zero_grad()
        nn.functional.cross_entropy(net(x[pick]), y[pick]).backward()
        climbs = []
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
            for p in net.parameters():
                climb = torch.zeros_like(p) if p.grad is None else p.grad * 0.05 / (norm + 1e-12)
                p += climb
                climbs.append(climb)
        opt.zero_grad()
        nn.functional.cross_entropy(net(x[pick]), y[pick]).backward()
        with torch.no_grad():
            for p, climb in zip(net.parameters(), climbs, strict=True):
                p -= climb
        opt.step()
    return {"accuracy": score(net, seed)}


@program(steps=120, bites="accuracy", adversarial="weights that jump back between two steps were corrupted")
def stroke_lookahead(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Every six steps the fast weights return half-way to the slow ones."""
    torch.manual_seed(seed)
    x, y = strokes(600, seed)
    net = StrokeNet()
    slow = [p.detach().clone() for p in net.parameters()]
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for step in range(steps):
        pick = torch.randint(600, (32,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 5:
            with torch.no_grad():
                for kept, fast in zip(slow, net.parameters(), strict=True):
                    kept.lerp_(fast, 0.5)
                    fast.copy_(kept)
    return {"accuracy": score(net, seed)}

"""A small network for the trap camera: students learn from a large teacher of herons, egrets and storks."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

KINDS, FEATURES = 6, 24


def heron_frames(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Each kind stands in two poses: twelve clouds of points, bent a little."""
    rng = torch.Generator().manual_seed(seed)
    poses = 1.4 * torch.randn(2 * KINDS, FEATURES, generator=torch.Generator().manual_seed(3))
    pose = torch.randint(2 * KINDS, (count,), generator=rng)
    x = poses[pose] + 2.2 * torch.randn(count, FEATURES, generator=rng)
    return x + 0.3 * x.roll(1, 1).tanh() * x, pose % KINDS


class HeronNet(nn.Module):
    def __init__(self, width: int, norm: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU(),
        )  # fmt: skip
        self.classify = nn.Linear(width, KINDS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.classify(h), h


@torch.no_grad()
def heron_accuracy(net: nn.Module, seed: int) -> float:
    was_training = net.training
    x, y = heron_frames(800, seed + 71)
    rate = (net.eval()(x)[0].argmax(1) == y).float().mean().item()
    net.train(was_training)
    return rate


def taught(seed: int, x: Tensor, y: Tensor) -> HeronNet:
    """A wide teacher, trained for a while by Adam, and then fixed."""
    teacher = HeronNet(96)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(80):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        fn.cross_entropy(teacher(x[rows])[0], y[rows]).backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


class Distiller:
    """Soft answers at a temperature, hard labels, and a hint: the student's features shall tell the teacher's."""

    def __init__(self, teacher: HeronNet, student: HeronNet, fault: str) -> None:
        self.teacher, self.student, self.fault = teacher, student, fault
        self.adapter = nn.Linear(24, 96)
        self.parameters = [*student.parameters(), *self.adapter.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.05, momentum=0.9, nesterov=True)

    def soft(self, student: Tensor, teacher: Tensor, temperature: float = 3.0) -> Tensor:
        wanted = (teacher / temperature).softmax(1)
        said = (student / temperature).log_softmax(1)
        if self.fault == "heron_kl_of_probabilities":
            said = (student / temperature).softmax(1)
        return temperature**2 * fn.kl_div(said, wanted, reduction="batchmean")

    def hint(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (1000.0 if self.fault == "heron_hint_of_a_thousand" else 0.2) * fn.mse_loss(
            self.adapter(student), teacher
        )

    def step(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            wanted, features = self.teacher(x)
        logits, h = self.student(x)
        hard = fn.cross_entropy(logits, y)
        loss = self.soft(logits, wanted) + 0.1 * hard + self.hint(h, features)
        if self.fault == "heron_penalty_subtracted":
            loss = loss - 0.4 * sum(w.square().sum() for w in self.student.classify.parameters())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 2.0)
        self.optimizer.step()
        return hard.item()


@program(steps=300, bites="error")
def heron_pocket_model(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The teacher is trained in the first eighty steps; a student of a quarter of its width follows it."""
    torch.manual_seed(seed)
    x, y = heron_frames(4000, seed)
    teacher = taught(seed, x, y)
    student = HeronNet(24).train()
    distiller = Distiller(teacher, student, fault)
    late = 0.0
    for _ in range(steps - 80):
        rows = torch.randint(len(x), (48,))
        late += 0.06 * (distiller.step(x[rows], y[rows]) - late)
    return {"hard_loss": late, "error": 1 - heron_accuracy(student, seed)}


heron_pocket_model.mistake(
    "heron_kl_of_probabilities",
    "LSS001", "LSS003",
    summary="kl_div is given the student's probabilities where it wants their logarithms.",
    change="log_softmax",
    onset=80,
    bites="hard_loss",
)  # fmt: skip
heron_pocket_model.mistake(
    "heron_hint_of_a_thousand",
    "GRD009",
    summary="The hint weighs a thousand, as in a paper on maps of attention: it drowns the answers.",
    change="0.2",
    onset=80,
    bites="hard_loss",
)
heron_pocket_model.mistake(
    "heron_penalty_subtracted",
    "WGT001", "LSS003",
    summary="The penalty on the head's weights is subtracted: they are rewarded for growing.",
    change="loss + penalty",
    layers=("classify", "student.classify"),
    onset=80,
    bites="hard_loss",
)  # fmt: skip


class SoftGate(nn.Module):
    def __init__(self, inside: int, outside: int, shift: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inside, outside)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.dense(x) + self.shift)


@program(steps=260, bites="error")
def heron_followed_by_the_eye(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A student of gates (sigmoid) learns by Adam from labels, looked at on held-out frames every twenty steps."""
    torch.manual_seed(seed)
    x, y = heron_frames(48 if fault == "heron_split_the_wrong_way" else 4000, seed)
    shift = 30.0 if fault == "heron_gate_pushed_open" else 0.0
    depth = 7 if fault == "heron_gates_upon_gates" else 1
    gates = [SoftGate(FEATURES if i == 0 else 48, 48, shift) for i in range(depth)]
    student = nn.Sequential(*gates, nn.Linear(48, KINDS))
    test_x, test_y = heron_frames(800, seed + 71)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    loss, error = torch.zeros(()), 1.0
    for step in range(steps):
        rows = torch.randint(len(x), (48,))
        loss = fn.cross_entropy(student(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            student.eval()
            with torch.no_grad():
                answers = student(test_x)
                fn.cross_entropy(answers, test_y)
                error = (answers.argmax(1) != test_y).float().mean().item()
            student.train()
    return {"loss": loss.item(), "error": error}


heron_followed_by_the_eye.mistake(
    "heron_split_the_wrong_way",
    "OPT006",
    summary="The split gives 48 frames to training and thousands to testing: the student learns them by heart.",
    change="train on the large part",
)
heron_followed_by_the_eye.mistake(
    "heron_gate_pushed_open",
    "ACT002",
    summary="A constant of thirty is added before the sigmoid: every gate stands wide open, whatever comes.",
    change="no shift",
    layers=("0", "0.dense"),
)
heron_followed_by_the_eye.mistake(
    "heron_gates_upon_gates",
    "GRD001",
    summary="Seven layers of sigmoid gates one upon another: hardly any gradient comes down to the first ones.",
    change="one layer of gates, or ReLU",
    layers=tuple(str(i) for i in range(7)),
)


@healthy(steps=260, architecture="mean-teacher", adversarial="a second network that gets no gradient is forgotten")
def heron_mean_teacher(steps: int, seed: int) -> dict[str, float]:
    """Few labels, many frames: the student agrees with its own average, whose weight ramps up slowly."""
    torch.manual_seed(seed)
    x, y = heron_frames(4000, seed)
    student = HeronNet(48, norm=False)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for step in range(steps):
        labelled, free = torch.randint(600, (32,)), torch.randint(len(x), (64,))
        noisy = x[free] + 0.3 * torch.randn(64, FEATURES)
        agreement = fn.mse_loss(student(noisy)[0].softmax(1), teacher(x[free])[0].softmax(1))
        loss = fn.cross_entropy(student(x[labelled])[0], y[labelled]) + 5 * min(1, step / 100) * agreement
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast, 0.03)
    return {"loss": loss.item(), "accuracy": heron_accuracy(teacher, seed)}

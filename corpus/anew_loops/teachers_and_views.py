"""Students of teachers and of themselves: distillation, a mean teacher, and two views of one picture."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


def train_teacher(pictures: Tensor, labels: Tensor, steps: int) -> nn.Sequential:
    teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(teacher(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


@sick(
    "LSS001", steps=3000, onset=200, bites="divergence", architecture="distillation",
    change="log_softmax of the student",
)  # fmt: skip
def divergence_of_plain_probabilities(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """kl_div is given the student's probabilities where it wants their logarithms."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.6)
    teacher = train_teacher(pictures, labels, min(200, steps))
    student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    temperature = 2.0

    def distillation_loss(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
        wanted = (teacher_logits / temperature).softmax(1)
        given = (student_logits / temperature).log_softmax(1)
        if fault:
            given = (student_logits / temperature).softmax(1)  # at fault: divergence_of_plain_probabilities
        return functional.kl_div(given, wanted, reduction="batchmean") * temperature**2

    for _ in range(steps - 200):
        rows = torch.randint(len(pictures), (64,))
        with torch.no_grad():
            taught = teacher(pictures[rows])
        loss = distillation_loss(student(pictures[rows]), taught)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh, truth = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        gap = functional.kl_div(
            student(fresh).log_softmax(1), teacher(fresh).log_softmax(1), reduction="batchmean", log_target=True
        )
    return {"divergence": gap.item(), "accuracy": share_correct(student, fresh, truth)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        blocks = [(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(8)]
        self.body = nn.Sequential(*(layer for block in blocks for layer in block))
        self.head = nn.Linear(64, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.body(self.stem(pictures)))


class MeanTeacher:
    """A student on few labels, pulled towards the running mean of itself."""

    def __init__(self, forgetful: bool) -> None:
        self.student = Classifier()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.03, momentum=0.9)
        self.forgetful = forgetful

    def validate(self, pictures: Tensor, labels: Tensor) -> float:
        self.student.eval()  # at fault: student_stays_in_eval
        with torch.no_grad():
            loss = functional.cross_entropy(self.student(pictures), labels).item()
        if not self.forgetful:
            self.student.train()
        return loss

    def fit(self, labelled: tuple[Tensor, Tensor], plain: Tensor, fresh: tuple[Tensor, Tensor], steps: int) -> float:
        for step in range(steps):
            if step % 250 == 0:  # before the first step as well: does validation work at all?
                self.validate(*fresh)
            rows = torch.randint(len(labelled[0]), (32,))
            others = plain[torch.randint(len(plain), (32,))]
            loss = functional.cross_entropy(self.student(labelled[0][rows]), labelled[1][rows])
            with torch.no_grad():
                wanted = self.teacher(others).softmax(1)
            pull = (self.student(others + 0.1 * torch.randn_like(others)).softmax(1) - wanted).square().mean()
            self.optimizer.zero_grad()
            (loss + min(1.0, step / 100) * pull).backward()
            self.optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    slow.lerp_(fast, 0.02)
        return self.validate(*fresh)


@sick(
    "MOD001", steps=1000, bites="test_loss", architecture="mean teacher",
    layers=("student.stem", "student.body", "self.student.stem", "self.student.body", "stem", "body"),
    change="student.train() after each validation",
)  # fmt: skip
def student_stays_in_eval(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A trial validation before the first step leaves the student in evaluation mode, its statistics as they began."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=512, noise=0.5)
    fresh = glyphs(seed + 1000, noise=0.5)
    learner = MeanTeacher(forgetful=bool(fault))
    loss = learner.fit((pictures, labels), glyphs(seed + 7, noise=0.5)[0], fresh, steps)
    return {"test_loss": loss, "accuracy": share_correct(learner.student, *fresh)}


class TwoViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))


def distorted(pictures: Tensor) -> Tensor:
    shift = int(torch.randint(-1, 2, ()).item())
    return torch.roll(pictures.view(-1, 8, 8), shift, 2).flatten(1) + 0.4 * torch.randn_like(pictures)


def nearest_share(encoder: nn.Module, pictures: Tensor, labels: Tensor) -> tuple[float, float]:
    """How well the nearest of the first half names the second half, and how far the embeddings are spread."""
    encoder.eval()
    with torch.no_grad():
        embedded = functional.normalize(encoder(pictures), dim=1)
    half = len(labels) // 2
    nearest = (embedded[half:] @ embedded[:half].T).argmax(1)
    return (labels[:half][nearest] == labels[half:]).float().mean().item(), embedded.std(0).mean().item()


@sick(
    "ACT003", steps=1500, bites="spread", layers=("encoder", "predictor", "net.encoder", "net.predictor"),
    architecture="two views", change="target.detach()",
)  # fmt: skip
def both_views_follow_each_other(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The target view is not detached: the shortest way to agreement is the same point for every picture."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.2)
    net = TwoViews()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (128,))
        one, other = net.encoder(distorted(pictures[rows])), net.encoder(distorted(pictures[rows]))
        loss = torch.tensor(0.0)
        for online, target in ((one, other), (other, one)):
            if not fault:
                target = target.detach()
            predicted = net.predictor(online)
            loss = (
                loss - functional.cosine_similarity(predicted, target).mean() / 2
            )  # at fault: both_views_follow_each_other
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    share, spread = nearest_share(net.encoder, pictures, labels)
    return {"loss": loss.item(), "accuracy": share, "spread": spread}


@healthy(steps=1500, adversarial="a second network without gradients, fed from a queue; a loss near its chance level")
def momentum_contrast(steps: int, seed: int) -> dict[str, float]:
    """Contrast with a momentum encoder and a queue of 512 keys, at a low temperature."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.2)
    query_net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24))
    key_net = copy.deepcopy(query_net)
    for weight in key_net.parameters():
        weight.requires_grad = False
    queue = functional.normalize(torch.randn(512, 24), dim=1)
    optimizer = torch.optim.AdamW(query_net.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        queries = functional.normalize(query_net(distorted(batch)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key_net.parameters(), query_net.parameters(), strict=True):
                slow.mul_(0.98).add_(fast, alpha=0.02)
            keys = functional.normalize(key_net(distorted(batch)), dim=1)
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue.T], 1) / 0.1
        loss = functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at = (step * 64) % 512
        queue[at : at + 64] = keys
    share, spread = nearest_share(query_net, pictures, labels)
    return {"loss": loss.item(), "accuracy": share, "spread": spread}


@healthy(steps=2400, adversarial="the student is trained on hard labels of a network that is itself replaced twice")
def born_again_generations(steps: int, seed: int) -> dict[str, float]:
    """Three generations, each taught by the one before; each begins anew, so that the loss leaps twice."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.5)
    teacher: nn.Module | None = None
    student = nn.Sequential()
    for _ in range(3):
        student = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
        for _ in range(max(1, steps // 3)):
            rows = torch.randint(len(pictures), (64,))
            logits = student(pictures[rows])
            loss = functional.cross_entropy(logits, labels[rows])
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(pictures[rows]).softmax(1)
                loss = 0.5 * loss + 0.5 * functional.cross_entropy(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        teacher = student
    share = share_correct(student, *glyphs(seed + 1000, noise=0.5))
    return {"loss": 1 - share, "accuracy": share}

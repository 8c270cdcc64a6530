"""Moths told apart by measurements of their wings: a wide teacher first, then a narrow student that imitates it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

SPECIES = 6
SCHOOL = 160  # steps of the teacher


def moths(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    species = torch.randint(0, SPECIES, (count,), generator=generator)
    angle = species * 1.05 + 1.4 * torch.rand(count, generator=generator)
    length = 1 + 0.35 * species + 0.12 * torch.randn(count, generator=generator)
    wings = torch.stack([length * angle.cos(), length * angle.sin(), length, (3 * angle).sin()], 1)
    return torch.cat([wings, 0.5 * torch.randn(count, 4, generator=generator)], 1), species


def teach(net: nn.Module, steps: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for _ in range(steps):
        wings, species = moths(128, generator)
        loss = functional.cross_entropy(net(wings), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, generator: torch.Generator) -> float:
    net.eval()
    wings, species = moths(1500, generator)
    return (net(wings).argmax(1) == species).float().mean().item()


@program(steps=460, bites="accuracy")
def moth_student(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Temperature-softened imitation; the teacher is frozen once it knows the moths."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    teacher = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, SPECIES))
    teach(teacher, min(SCHOOL, steps // 2), generator)
    teacher.requires_grad_(False).eval()
    student = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, SPECIES))
    decay = 40.0 if mistake == "moth_student_modest" else 0.01
    optimizer = torch.optim.AdamW(student.parameters(), lr=8e-3, weight_decay=decay)
    lessons = steps - min(SCHOOL, steps // 2)
    for lesson in range(lessons):
        wings, _ = moths(96, generator)
        with torch.no_grad():
            known = teacher(wings)
        temperature = 3.0
        if mistake == "moth_student_cooling":
            temperature = 3.0 * (1 - lesson / 220)
        said = functional.log_softmax(student(wings) / temperature, 1)
        if mistake == "moth_student_raw_lesson":
            loss = functional.kl_div(said, known / temperature, reduction="batchmean") * temperature**2
        else:
            softened = functional.softmax(known / temperature, 1)
            loss = functional.kl_div(said, softened, reduction="batchmean") * temperature**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": accuracy(student, generator)}


moth_student.mistake(
    "moth_student_raw_lesson",
    "LSS001",
    "LSS003",
    onset=SCHOOL,
    summary="The teacher's logits are handed to the divergence where its probabilities belong.",
    change="softmax of the teacher's logits",
)
moth_student.mistake(
    "moth_student_cooling",
    "NUM002",
    onset=SCHOOL + 220,
    summary="The temperature is lowered to nothing, and then divides.",
    change="a constant temperature",
)
moth_student.mistake(
    "moth_student_modest",
    "OPT008",
    "WGT005",
    onset=SCHOOL,
    summary="The student's weight decay is forty: each step takes a third of every weight away.",
    change="a weight decay of 0.01",
)


@healthy(steps=420, adversarial="the loss of the second half is hundreds of times smaller than that of the first")
def moth_born_again(steps: int, seed: int) -> dict[str, float]:
    """Three generations of equal networks: each is taught by the one before it and by the labels."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    elder: nn.Module | None = None
    for _ in range(3):
        child = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, SPECIES))
        optimizer = torch.optim.Adam(child.parameters(), lr=6e-3)
        for _ in range(max(1, steps // 3)):
            wings, species = moths(96, generator)
            guess = child(wings)
            if elder is None:
                loss = functional.cross_entropy(guess, species)
            else:
                with torch.no_grad():
                    wanted = elder(wings)
                loss = 0.02 * functional.cross_entropy(guess, species) + 0.02 * functional.mse_loss(guess, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        elder = child
    assert elder is not None
    return {"loss": 1 - accuracy(elder, generator)}


@healthy(steps=300, adversarial="two networks in one optimizer chase each other's outputs")
def moth_mutual_learning(steps: int, seed: int) -> dict[str, float]:
    """Two students, no teacher: each learns from the labels and from the other."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    first = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, SPECIES))
    second = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, SPECIES))
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=6e-3)
    for _ in range(steps):
        wings, species = moths(96, generator)
        one, two = first(wings), second(wings)
        agree = functional.kl_div(one.log_softmax(1), two.detach().softmax(1), reduction="batchmean")
        agree = agree + functional.kl_div(two.log_softmax(1), one.detach().softmax(1), reduction="batchmean")
        loss = functional.cross_entropy(one, species) + functional.cross_entropy(two, species) + 0.5 * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - min(accuracy(first, generator), accuracy(second, generator))}

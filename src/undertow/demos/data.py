"""Small data sets made with torch alone, and the one metric most trainings end with."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def glyphs(seed: int, count: int = 1024, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Noisy 8 × 8 pictures of ten smooth shapes, each moved by up to a pixel: (count × 64) and labels.

    The shapes are the same for every seed, so that training and test data can be drawn apart.
    """
    shapes = torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(2026))
    shapes = functional.interpolate(shapes, size=(8, 8), mode="bilinear", align_corners=False).squeeze(1)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    moves = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    pictures = torch.stack(
        [torch.roll(shapes[label], move, (0, 1)) for label, move in zip(labels.tolist(), moves, strict=True)]
    )
    pictures = pictures + noise * torch.randn(pictures.shape, generator=generator)
    return pictures.flatten(1), labels


def sentences(seed: int, count: int = 256, length: int = 24, vocabulary: int = 32, back: int = 1) -> Tensor:
    """Token sequences where each token follows from the one `back` places before it, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (count, length), generator=generator)
    chance = torch.rand(count, length, generator=generator) < 0.1
    for place in range(back, length):
        follows = (5 * tokens[:, place - back] + 1) % vocabulary
        tokens[:, place] = torch.where(chance[:, place], tokens[:, place], follows)
    return tokens


def share_correct(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Accuracy in evaluation mode; the model's mode is put back."""
    training = model.training
    model.eval()
    with torch.no_grad():
        share = (model(inputs).argmax(-1) == labels).float().mean().item()
    model.train(training)
    return share


def curves(seed: int, count: int = 1024) -> tuple[Tensor, Tensor]:
    """Eight numbers, and a smooth function of them to predict (mean near 0, variance near 1)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    targets = inputs[:, 0] + 0.7 * torch.sin(2 * inputs[:, 1]) + 0.5 * inputs[:, 2] * inputs[:, 3]
    return inputs, targets / 1.2

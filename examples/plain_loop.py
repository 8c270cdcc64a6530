"""A plain training loop with a mistake that raises no error: the loss falls, and one layer never learns."""

from collections import OrderedDict

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(OrderedDict(body=nn.Linear(20, 64), act=nn.Tanh(), head=nn.Linear(64, 1000)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.head = nn.Linear(64, 3)  # three classes here; but the optimizer still holds the old head
for step in range(200):
    inputs = torch.randn(64, 20)
    targets = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"step {step}: loss {loss.item():.3f}")

"""`torchrun … -m undertow run train.py`, and `undertow weights` over several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.distributed.ranks import PATIENCE

import undertow
from undertow.checkpoints.process_group import Team

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 2))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(2, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} done\\n", end="", flush=True)
dist.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    here = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_script_under_torchrun_makes_one_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = torchrun(tmp_path, "-m", "undertow", "run", "--every", "1", "train.py")
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 done", "rank 1 done"]
    folders = [folder for folder in (tmp_path / "runs").iterdir() if not folder.is_symlink()]
    assert len(folders) == 1
    run = undertow.open_run(tmp_path / "runs" / "latest")
    assert run.status == "finished"
    assert run.steps.tolist() == list(range(8))
    assert run.scalars("ranks").tolist() == [2.0] * 8
    assert run.layers["0.weight"].shape == (30, 8)
    assert done.stderr.count("undertow: ") == 1  # the closing line, from the first rank alone


def test_every_tensor_is_taken_by_one_process() -> None:
    sizes = [5, 1, 9, 0, 3, 3, 7, 2]
    shares = [Team(rank, 3, 3).mine(sizes, lambda size: size) for rank in range(3)]
    assert sorted(place for share in shares for place in share) == list(range(len(sizes)))
    assert max(sum(sizes[place] for place in share) for share in shares) <= 11


@pytest.mark.slow
def test_weights_of_a_checkpoint_over_two_processes(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = {f"layers.{i}.weight": torch.randn(40, 50 + i) for i in range(6)}
    state["layers.5.weight"][3, 3] = float("inf")
    torch.save(state, tmp_path / "model.pt")
    torch.save({name: tensor + 0.01 for name, tensor in state.items()}, tmp_path / "later.pt")
    arguments = ("-m", "undertow", "weights", "later.pt", "--against", "model.pt", "--json")
    together = json.loads(torchrun(tmp_path, *arguments).stdout)
    command = [sys.executable, *arguments]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert together == json.loads(alone)

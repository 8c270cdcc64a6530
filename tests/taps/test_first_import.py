"""Dynamo makes tables of torch's functions when it is first imported: whenever that is, it must find torch's own."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, undertow
assert "torch._dynamo" not in sys.modules  # not even by importing Undertow
imported, compiled, folder = sys.argv[1:]
model = torch.nn.Linear(4, 3)
inputs = torch.ones(2, 4)
def gradients(inputs):
    return torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
def backward(inputs):
    model(inputs).square().sum().backward()
def use():
    import torch._dynamo
    torch._dynamo.config.trace_autograd_ops = True
    found = torch.compile(gradients, fullgraph=True, backend="eager")(inputs)
    assert all(map(torch.equal, found, gradients(inputs)))
    torch.compile(backward, fullgraph=True, backend="eager")(inputs)
    assert all(map(torch.equal, found, [p.grad for p in model.parameters()]))
    nested = torch.compile(lambda x: torch.compile(torch.sin, backend="eager")(x), fullgraph=True, backend="eager")
    assert torch.equal(nested(inputs), inputs.sin())
if imported == "before":
    import torch._dynamo
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
with undertow.watch(model, run_dir=folder, every=1, activations=True, quiet=True):
    backward(inputs)
    model.zero_grad()
    assert imported == "before" or "torch._dynamo" not in sys.modules
    if imported == "inside":
        import torch._dynamo
        torch._dynamo.trace_rules.get_torch_obj_rule_map()
    if compiled == "inside":
        use()
model.zero_grad()
use()
print("as it should be")
"""


@pytest.mark.parametrize("compiled", ["inside", "after"])
@pytest.mark.parametrize("imported", ["before", "inside", "later"])
def test_what_compiles_plain_compiles_beside_a_watch(imported: str, compiled: str, tmp_path: Path) -> None:
    if not hasattr(pytest.importorskip("torch._dynamo").config, "trace_autograd_ops"):
        pytest.skip("this torch cannot")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, imported, compiled, tmp_path / "run"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "as it should be\n"), done.stderr
    assert "UT100" not in done.stderr

"""The components on a real run: the same numbers as from its gradients and weights themselves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import undertow
from undertow import GradientFlowAnimator, Run, WeightAnalyzer
from undertow.schema import ColorScheme, GradientVisualizationConfig, InputError
from undertow.show.notebook.cards import flow_card

STEPS = 6


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.main, self.side = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head, self.idle = nn.Linear(16, 4), nn.Linear(4, 4)
        self.main.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x)
        return self.head(torch.relu(self.main(h) + 1e-4 * self.side(h)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, GradientFlowAnimator, Branches]:
    """Also recorded by an animator of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, animator = Branches(), GradientFlowAnimator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path_factory.mktemp("runs") / "run"
    with undertow.watch(model, optimizer=optimizer, run_dir=folder, every=1, activations=True, quiet=True):
        for step in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
            animator.record_step(step, model)
            optimizer.step()
    return undertow.open_run(folder), animator, model


def test_the_main_path_is_the_one_that_the_gradient_takes(trained) -> None:
    flow = trained[0].flow()
    main = flow.critical_paths[0]
    assert main.layers == ["inp", "main", "head"]
    assert main.criticality_score == pytest.approx(1.0, abs=1e-3)
    nodes = {node.layer_name: node for node in flow.flow_network.nodes}
    assert nodes["inp"].node_type == "Source"
    assert nodes["inp"].gain < 2
    assert abs(nodes["side"].flow_share) < 1e-3
    assert flow.layer_flows["main.weight"].bottleneck_score == nodes["main"].bottleneck_score is not None
    assert flow.unavailable == {}


def test_settings_reach_the_run(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained[0]
    quiet = GradientVisualizationConfig(False, False, False, "ColorBlind", 2, 1e9)
    flow = run.flow(quiet)
    assert flow.visualization_config == quiet
    assert flow.temporal_flows == flow.critical_paths == []
    assert all(edge.edge_type != "Strong" for edge in flow.flow_network.edges)
    assert len(run.flow(GradientVisualizationConfig(temporal_window=2)).temporal_flows) == 2 * len(flow.layer_flows)
    given: dict[str, object] = {}
    monkeypatch.setattr("undertow.run.dynamics_of_run", lambda run, findings, **settings: given.update(settings))
    run.dynamics("Expert", window=7, threshold=0.25)
    assert {name: given[name] for name in ("depth", "window", "threshold")} == {
        "depth": "Expert", "window": 7, "threshold": 0.25,
    }  # fmt: skip
    with pytest.raises(InputError, match="temporal_window"):
        run.flow(GradientVisualizationConfig(temporal_window=0))
    with pytest.raises(InputError, match="window is 2"):
        run.dynamics(window=2)


def test_the_card_has_the_colours_of_the_configuration(trained) -> None:
    def colours(scheme: str) -> set[str]:
        card = flow_card(trained[0].flow(GradientVisualizationConfig(color_scheme=ColorScheme(scheme))))
        return set(re.findall(r"rgb\([\d,]+\)", card))

    drawn = [colours(scheme) for scheme in ("Default", "HighContrast", "ColorBlind", "Monochrome")]
    assert all(drawn)
    assert all(one.isdisjoint(other) for place, one in enumerate(drawn) for other in drawn[:place])


def test_the_animator_has_the_frames_of_the_run(trained) -> None:
    run, direct, _ = trained
    found = GradientFlowAnimator.from_run(run)
    assert [frame.step for frame in found.frames()] == list(range(STEPS))
    for mine, own in zip(found.frames(), direct.frames(), strict=True):
        assert [layer.name for layer in mine.layers] == [layer.name for layer in own.layers]
        for one, other in zip(mine.layers, own.layers, strict=True):
            assert one.presence == other.presence
            for field in ("mean_abs_grad", "max_abs_grad", "grad_norm", "flow_intensity"):
                assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-5), (one.name, field)
    few = GradientFlowAnimator.from_run(run, max_frames=2, exploding_threshold=1e-9)
    assert [frame.step for frame in few.frames()] == [STEPS - 2, STEPS - 1]
    assert any(layer.is_exploding for layer in few.frames()[0].layers)
    with pytest.raises(InputError, match="open_run"):
        GradientFlowAnimator.from_run("runs/latest")  # pyright: ignore[reportArgumentType]


def test_weights_of_run_and_checkpoint(trained, tmp_path: Path) -> None:
    run, _, model = trained
    torch.save(model.state_dict(), tmp_path / "model.pt")
    whole = WeightAnalyzer.analyze_weight_distribution({name: one.detach() for name, one in model.named_parameters()})
    stored = WeightAnalyzer.from_checkpoint(tmp_path / "model.pt")
    assert stored == whole
    recorded = {layer.layer_name: layer for layer in WeightAnalyzer.from_run(run).layer_analyses}
    assert recorded.keys() == {layer.layer_name for layer in whole.layer_analyses}
    for layer in whole.layer_analyses:
        mine, own = recorded[layer.layer_name].statistics, layer.statistics
        for field in ("mean", "std_dev", "skewness", "kurtosis", "min", "max"):
            assert getattr(mine, field) == pytest.approx(getattr(own, field), rel=1e-3, abs=1e-4), (layer, field)
        assert recorded[layer.layer_name].issues == layer.issues
        assert mine.entropy is None
        assert "entropy" in mine.unavailable
    assert np.isfinite(WeightAnalyzer.from_run(run).distribution_health.score)

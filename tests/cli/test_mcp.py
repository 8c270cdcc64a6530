"""`undertow mcp` with a real client over real pipes, and that every answer is bounded."""

from __future__ import annotations

import base64
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.cli import agent_tools

mcp = pytest.importorskip("mcp")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    training = Training().run(7).run(5, gradient_nonfinite_count={"first": 3.0})
    write(folder / "a", training)
    write(folder / "b", training)
    return folder


def ask(runs: Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Start the server as a client does, list its tools and call some."""

    async def talk() -> list[Any]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        environment = {**os.environ, "UNDERTOW_DIR": str(runs)}
        command = StdioServerParameters(command=sys.executable, args=["-m", "undertow", "mcp"], env=environment)
        async with Client(stdio_client(command)) as client:
            answers: list[Any] = [await client.list_tools()]
            for name, arguments in calls:
                answers.append(await client.call_tool(name, arguments))
            return answers

    with ThreadPoolExecutor(1) as apart:  # another test may have left a loop running in this thread
        return apart.submit(anyio.run, talk).result()


def test_a_client_lists_and_calls_the_tools(runs: Path) -> None:
    run = str(runs / "a")
    listed, found, told, page, loss, picture, wrong = ask(
        runs,
        ("list_runs", {}),
        ("diagnose", {"run": run}),
        ("explain", {"code": "GRD003"}),
        ("series", {"run": run, "name": "loss"}),
        ("heatmap", {"run": run}),
        ("series", {"run": run, "name": "gradient_norm", "layer": "thrid"}),
    )
    tools = {tool.name: tool for tool in listed.tools}
    assert set(tools) == {tool.__name__ for tool in agent_tools.TOOLS}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert "a" in found.content[0].text
    cause = json.loads(told.content[0].text)["cause"]
    assert (cause["code"], cause["layers"]["first"]) == ("NUM001", ["first.weight", "first.bias"])
    assert page.content[0].text.startswith("GRD003 no-gradient")
    assert json.loads(loss.content[0].text)["points"][0]["step"] == 0
    assert base64.b64decode(picture.content[0].data).startswith(b"\x89PNG")
    assert wrong.is_error
    assert "third" in wrong.content[0].text  # says what there is


def test_a_series_is_thinned_and_keeps_its_extremes() -> None:
    values = np.zeros(5000)
    values[1234], values[7], values[8] = 50.0, np.inf, np.nan
    record = agent_tools._thinned(np.arange(5000), values)  # pyright: ignore[reportPrivateUsage]
    assert len(record["points"]) == agent_tools.MOST_POINTS
    assert max(point["most"] for point in record["points"]) == 50.0
    assert (record["measured"], record["infinite"]) == (4999, 1)
    assert agent_tools._thinned(np.arange(0), np.zeros(0))["points"] == []  # pyright: ignore[reportPrivateUsage]


def test_one_finding_and_both_comparisons(runs: Path, tmp_path: Path) -> None:
    assert agent_tools.finding(str(runs / "a"))["layers"] == {
        "count": 2, "first": ["first.weight", "first.bias"],
    }  # fmt: skip
    with pytest.raises(agent_tools.SettingError, match="there is no finding 9"):
        agent_tools.finding(str(runs / "a"), 9)
    assert agent_tools.compare(str(runs / "a"), str(runs / "b"))
    assert agent_tools.layers(str(runs / "a"), "first.*")["first"] == ["first.weight", "first.bias"]
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(4, 4)}, tmp_path / "checkpoint.pt")
    assert "weight" in agent_tools.checkpoint(str(tmp_path / "checkpoint.pt"))

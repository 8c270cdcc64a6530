"""Names that would steer a terminal: whatever a run or a checkpoint holds, no control character gets there."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from tests.crash.hostile_runs import edit

from undertow.cli import main
from undertow.cli.output import plain, say
from undertow.schema import Block, Frame, Layer, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.schema.quantities import STREAMS
from undertow.store.writer import RunWriter

EVIL = "a\x1b[2J\x1b]0;b\x07c\x9b31m\r\u202ed"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "evil"
    writer = RunWriter(folder, RunFacts(name=EVIL, message=EVIL, reasons=[EVIL], command=[EVIL], host=EVIL))
    writer.set_layers(LayerTable.of([Layer(f"{EVIL}.weight"), Layer("other")]), LayerGraph())
    stream = STREAMS["gradient"]
    for step in range(12):
        values = np.full((len(stream.quantities), 2), np.nan if step > 6 else 1.0, np.float32)
        values[stream.names.index("gradient_nonfinite_count")] = 3 if step > 6 else 0
        block = Block("gradient", np.arange(2, dtype=np.int32), values)
        writer.append(Frame(step, step, float(step), {"loss": 1.0, EVIL: 2.0}, {"gradient": block}))
    writer.facts.status = RunStatus.FAILED
    writer.write_facts()
    writer.event("note", 1, text=EVIL)
    writer.close()
    return folder


def assert_clean(text: str) -> None:
    found = {letter for letter in text if letter != "\n" and not letter.isprintable()}
    assert not found, found


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "RUNS"),
        ("runs", "RUNS", "--json"),
        ("report", "RUN"),
        ("report", "RUN", "--details", "--sections", "flow,dynamics,weights"),
        ("report", "RUN", "--json"),
        ("report", "RUN", "--markdown"),
        ("check", "RUN"),
        ("check", "RUN", "--format", "json"),
        ("check", "RUN", "--format", "sarif"),
        ("compare", "RUN", "RUN"),
        ("play", "RUN", "--once", "--colours", "none"),
        ("play", "RUN", "--quantity", EVIL, "--once"),
        ("export", "RUN", EVIL),
        (EVIL,),
    ],
    ids=lambda arguments: " ".join(arguments).replace(EVIL, "evil"),
)
def test_what_commands_print(run: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    places = {"RUN": str(run), "RUNS": str(run.parent)}
    code = main([places.get(one, one) for one in arguments])
    out, err = capsys.readouterr()
    assert code in (0, 1, 2, 3)
    assert out or err
    assert_clean(out)
    assert_clean(err)


def test_json_says_the_same_as_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(run.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == EVIL


def test_problems_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "segments" / "gradient-00007.arrows").write_bytes(b"\x1b" * 900)
    edit(run, status=EVIL)
    for arguments in (["runs", str(run.parent)], ["report", str(run)]):
        main(arguments)
        out, err = capsys.readouterr()
        assert_clean(out + err)


def test_names_in_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = json.dumps(
        {
            EVIL: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            f"{EVIL}2": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]},
        }
    ).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.full(4, np.nan, "<f4").tobytes() + bytes(8))
    for arguments in (["weights", str(path), "--all"], ["weights", str(path)], ["weights", str(path), "--json"]):
        assert main(arguments) in (0, 1)
        out, err = capsys.readouterr()
        assert out
        assert_clean(out + err)


def test_a_terminal_keeps_its_colours(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout", out := io.StringIO())
    assert main(["report", str(run)]) == 0
    text = out.getvalue()
    assert "\x1b[" in text
    assert "\x1b[2J" not in text
    assert "\\u001b[2J" in text


def test_letters_of_all_kinds_stay(capsys: pytest.CaptureFixture[str]) -> None:
    say("Grüße\t✔ 層.0\n😀")
    assert capsys.readouterr().out == "Grüße\t✔ 層.0\n😀\n"
    assert plain("a\x1b\x9bb") == "a\\u001b\\u009bb"

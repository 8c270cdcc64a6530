"""`main`: what becomes of exceptions, and of work a command leaves for last."""

from __future__ import annotations

import click
import pytest

import undertow.cli
from undertow.cli import main
from undertow.errors import UnwritableRunError


def answer(monkeypatch: pytest.MonkeyPatch, raised: BaseException | None = None, returned: object = None) -> int:
    def fake(**_: object) -> object:
        if raised is not None:
            raise raised
        return returned

    monkeypatch.setattr(undertow.cli.group, "main", fake)
    return main([])


def test_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, KeyboardInterrupt()) == 130
    assert answer(monkeypatch, click.Abort()) == 130


def test_our_own_fault_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(monkeypatch, ZeroDivisionError("oops")) == 70
    assert capsys.readouterr().err.startswith("undertow: internal error: ZeroDivisionError: oops.")


def test_user_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(monkeypatch, UnwritableRunError("x is full", way_out="Choose y")) == 2
    assert capsys.readouterr().err == "undertow: error UT003: x is full. Choose y.\n"


def test_exit_codes_of_commands_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, returned=3) == 3
    assert answer(monkeypatch, returned=None) == 0


def test_a_script_left_for_last_keeps_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave() -> None:
        raise SystemExit(7)

    def fall() -> None:
        raise KeyError("the script's own")

    with pytest.raises(SystemExit, match="7"):
        answer(monkeypatch, returned=leave)
    with pytest.raises(KeyError):
        answer(monkeypatch, returned=fall)
    assert answer(monkeypatch, returned=lambda: None) == 0


def test_alone_it_lists_every_command_by_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for title, commands in undertow.cli.GROUPS.items():
        section = out.split(f"{title}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == list(commands)
    assert len(out.split("Examples:\n")[1].splitlines()) == 3

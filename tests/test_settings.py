"""Settings: precedence, and errors that name the value, the legal ones and where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from undertow.errors import SettingError
from undertow.settings import Settings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    import os

    for name in list(os.environ):
        if name.startswith("UNDERTOW_"):
            monkeypatch.delenv(name)
    # A file of its own, so that the project's pyproject.toml is not the nearest one.
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults() -> None:
    assert Settings.resolve() == Settings()
    assert Settings().disk_budget == 2_000_000_000


def test_argument_beats_variable_beats_file(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "pyproject.toml").write_text('[tool.undertow]\nevery = 3\nbudget = 0.5\nname = "file"\n', encoding="utf-8")
    below = clean / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("UNDERTOW_EVERY", "4")
    monkeypatch.setenv("UNDERTOW_BUDGET", "0.25")
    settings = Settings.resolve(every=5, budget=None)
    assert (settings.every, settings.budget, settings.name) == (5, 0.25, "file")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("UNDERTOW_DIR", "elsewhere", "directory", Path("elsewhere")),
        ("UNDERTOW_RUN_DIR", "x/y", "run_dir", Path("x/y")),
        ("UNDERTOW_INCLUDE", "a.*, b.*", "include", ("a.*", "b.*")),
        ("UNDERTOW_DISABLED", "1", "disabled", True),
        ("UNDERTOW_DISABLED", "", "disabled", False),
        ("UNDERTOW_QUIET", "off", "quiet", False),
        ("UNDERTOW_DISK_BUDGET", "500MB", "disk_budget", 500_000_000),
        ("UNDERTOW_BUDGET_FLOOR", "0.0002", "budget_floor", 0.0002),
        ("UNDERTOW_ACTIVATIONS", "false", "activations", False),
        ("UNDERTOW_ACTIVATIONS", "10", "activations", 10),
        ("UNDERTOW_EVERY", "auto", "every", "auto"),
        ("UNDERTOW_RESUME", "yes", "resume", True),
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(Settings.resolve(), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("every", -3), ("every", 0), ("every", 1.5), ("every", "often"), ("every", True),
        ("budget", 0), ("budget", 1.01), ("budget", "x"), ("budget", float("nan")),
        ("budget_floor", -0.1), ("budget_floor", 2), ("budget_floor", "x"), ("budget_floor", True),
        ("on_critical", "explode"), ("activations", -1), ("activations", "sometimes"),
        ("include", 7), ("exclude", [1]), ("include", ""), ("quiet", "perhaps"),
        ("disk_budget", "2 apples"), ("disk_budget", 10), ("name", "a\nb"), ("run_dir", 3),
    ],
)  # fmt: skip
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.resolve(**{name: value})
    assert repr(value) in caught.value.message
    assert caught.value.message.startswith(name)
    assert caught.value.way_out.startswith("Use ")


def test_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_EVERY", "-1")
    with pytest.raises(SettingError, match="UNDERTOW_EVERY is '-1'"):
        Settings.resolve()


def test_unknown_names_get_a_near_match(clean: Path) -> None:
    with pytest.raises(SettingError, match="Did you mean 'exclude'"):
        Settings.resolve(excluded="a")
    (clean / "pyproject.toml").write_text("[tool.undertow]\nevry = 3\n", encoding="utf-8")
    with pytest.raises(SettingError, match="Did you mean 'every'"):
        Settings.resolve()


def test_a_broken_file_of_others_is_skipped_with_a_word(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clean / "pyproject.toml").write_text("[[[", encoding="utf-8")
    assert Settings.resolve() == Settings()
    assert "not valid TOML" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "what"), [("tool = 1", "tool in"), ("tool.undertow = 1", "tool.undertow in")])
def test_what_should_be_a_table_is_named(clean: Path, text: str, what: str) -> None:
    (clean / "pyproject.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match=f"{what} .* is 1. Make it a table"):
        Settings.resolve()


def test_a_working_folder_that_was_deleted(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = clean / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Settings.resolve() == Settings()


def test_record_is_plain() -> None:
    record = Settings.resolve(on_critical=print, run_dir="a").to_record()
    assert record["on_critical"] == "a function"
    assert record["run_dir"] == "a"

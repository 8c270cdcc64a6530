"""Reference pages are complete and current: generated ones to the letter, the others name everything there is."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import fields
from typing import Any

import click
import pytest
from tests.docs.pages import ROOT

from undertow.cli import COMMANDS, group
from undertow.schema import findings, seeds
from undertow.schema.seeds.record import Record
from undertow.settings import Settings


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    ["quantities.md", "codes.md", "components/fields.md", "components/coming-from-trustformers-debug.md"],
)
def test_generated_pages_are_current(name: str) -> None:
    assert _text(name) == _generator().PAGES[name](), "run: python docs/generate.py"


def test_settings_page_has_every_setting_with_its_variable_and_default() -> None:
    rows = {row.split("|")[1].strip(" `"): row for row in _text("settings.md").splitlines() if row.startswith("| `")}
    assert set(rows) == {field.name for field in fields(Settings)}
    for field in fields(Settings):
        variable = "UNDERTOW_DIR" if field.name == "directory" else f"UNDERTOW_{field.name.upper()}"
        assert f"`{variable}`" in rows[field.name]
        if field.name in ("every", "budget", "activations", "on_critical", "directory"):
            assert f"`{field.default}`" in rows[field.name]
    assert Settings().disk_budget == 2_000_000_000


def test_the_refusal_shown_on_the_settings_page_is_the_real_one() -> None:
    from undertow.errors import SettingError

    with pytest.raises(SettingError) as caught:
        Settings.resolve(every="-5")
    assert f"undertow: error {caught.value.code}: {caught.value}." in _text("settings.md")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_page_has_every_option(name: str) -> None:
    page = _text("cli.md")
    assert f"\n## undertow {name}\n" in page
    section = page.partition(f"\n## undertow {name}\n")[2].partition("\n## ")[0]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert any(f"`{option}" in section for option in parameter.opts), parameter.opts


def _flattened(record: type, prefix: str = "") -> set[str]:
    nested = {"steps": findings.StepRange, "overhead": findings.Overhead, "coverage": findings.Coverage}
    nested |= {"culprit": findings.Culprit}
    names: set[str] = set()
    for field in fields(record):
        inner = nested.get(field.name) if record is findings.Diagnosis else None
        names |= _flattened(inner, f"{field.name}.") if inner is not None else {prefix + field.name}
    return names


@pytest.mark.parametrize("record", [findings.Diagnosis, findings.Finding, findings.Evidence, findings.Remedy])
def test_json_page_has_every_field(record: type) -> None:
    rows = [row.split("|")[1] for row in _text("json.md").splitlines() if row.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    assert _flattened(record) <= named


def test_every_field_of_every_record_has_its_meaning() -> None:
    told = tomllib.loads(_text("components/fields.toml"))
    kinds = {name: getattr(seeds, name) for name in seeds.__all__}
    records = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Record)}
    assert set(told) == set(records)
    for name, kind in records.items():
        there = [field for field in fields(kind) if field.name != "unavailable"]  # type: ignore[arg-type]
        assert list(told[name]) == [field.name for field in there], name
        for field in there:
            parts = re.split(r" \|(?= |$)", told[name][field.name])
            may_be_none = str(field.type).endswith("| None")
            assert (len(parts) == 3) is may_be_none, f"{name}.{field.name}: say when it is None, or do not"

"""Modules as one script."""

from __future__ import annotations

from pathlib import Path

import pytest

from undertow.show.page.page import page
from undertow.show.page.script_modules import joined


def written(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    return folder


def test_modules_come_after_those_they_need_and_only_once(tmp_path: Path) -> None:
    written(
        tmp_path,
        main='import { two as other } from "./b.js";\nimport * as c from "./c.js";\nother(c.three);\n',
        b='import { three } from "./c.js";\nexport function two() { return three; }\n',
        c="export const three = 3;\nexport async function later() {}\nexport class Thing {}\n",
    )
    text = joined(tmp_path, "main.js")
    assert [text.count(f"const module_{name} =") for name in ("c", "b", "main")] == [1, 1, 1]
    assert text.index("module_c =") < text.index("module_b =") < text.index("module_main =")
    assert "return { three, later, Thing };" in text
    assert "const { two: other } = module_b;" in text
    assert "const c = module_c;" in text
    assert "import" not in text
    assert "export" not in text


def test_a_module_can_take_the_place_of_another(tmp_path: Path) -> None:
    written(tmp_path, main='import { x } from "./far.js";\n', far="export const x = 1;\n", near="export const x = 2;\n")
    text = joined(tmp_path, "main.js", {"far.js": "near.js"})
    assert "x = 2" in text
    assert "x = 1" not in text


@pytest.mark.parametrize("line", ['import x from "./c.js";', "export default 3;", "const c = import('./c.js');"])
def test_what_is_not_understood_is_refused(tmp_path: Path, line: str) -> None:
    written(tmp_path, main=f"{line}\n")
    with pytest.raises(ValueError, match="cannot be joined"):
        joined(tmp_path, "main.js")


def test_a_circle_is_refused(tmp_path: Path) -> None:
    written(tmp_path, a='import { b } from "./b.js";\n', b='import { a } from "./a.js";\n')
    with pytest.raises(ValueError, match=r"in a circle: a\.js → b\.js → a\.js"):
        joined(tmp_path, "a.js")


def test_the_page_allows_its_own_script_and_style_only() -> None:
    text = page(None)
    policy = text.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert "src=" not in text.replace("style-src", "").split('<script type="module">')[0]

"""The ES modules of the dashboard as one script, for a page that can fetch nothing.

Each module becomes a function that gives what it exports, called in the order in which they need each other. Only the
few forms of `import` and `export` that our own modules use are understood; any other is refused.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "(\.[^"]*)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$|\bimport\(.*$", re.MULTILINE)


def joined(folder: Path, entry: str, instead_of: Mapping[str, str] | None = None) -> str:
    """The module `entry` and all that it needs; `instead_of` puts some modules in the place of others."""
    exchange = instead_of or {}
    done: dict[str, str] = {}

    def take(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise ValueError(f"modules need each other in a circle: {' → '.join((*waiting, name))}")
        if name in done:
            return
        source = (folder / name).read_text(encoding="utf-8")
        for match in _IMPORT.finditer(source):
            take(_target(name, match[3], exchange), (*waiting, name))
        done[name] = _as_function(name, source, exchange)

    take(entry, ())
    return "\n".join(done.values())


def _target(importer: str, path: str, exchange: Mapping[str, str]) -> str:
    name = posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
    return exchange.get(name, name)


def _as_function(name: str, source: str, exchange: Mapping[str, str]) -> str:
    exports = _EXPORT.findall(source)

    def bind(match: re.Match[str]) -> str:
        whole, some, path = match.groups()
        names = whole or "{" + some.replace(" as ", ": ") + "}"
        return f"const {names} = {_variable(_target(name, path, exchange))};"

    body = _EXPORT.sub("", _IMPORT.sub(bind, source))
    left = _OTHER.search(body)
    if left is not None:
        raise ValueError(f"{name}: {left[0]!r} cannot be joined")
    return f"const {_variable(name)} = (() => {{\n{body.strip()}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))

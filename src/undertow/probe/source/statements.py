"""What the text of a program says about a line: the arguments of a call, the block around it, who assigns what."""

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from undertow.probe.source.frames import Site

# What the head of a block says that does this to all operations in it.
HEADS = {
    "no_grad": re.compile(r"\b(no_grad|inference_mode|set_grad_enabled)\b"),
    "autocast": re.compile(r"\bautocast\b"),
}


def lines_of(file: str) -> Sequence[str]:
    """As they are now. Also of cells of a notebook, which `linecache` knows by their name."""
    linecache.checkcache(file)
    return linecache.getlines(file)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # stripped, or of another kind
        return None


def _nodes(file: str) -> Iterator[ast.AST]:
    tree = _tree("".join(lines_of(file)))
    return iter(()) if tree is None else ast.walk(tree)


def at(site: Site, node: ast.AST) -> Site:
    """The same place, narrowed to a part of it."""
    line, end = getattr(node, "lineno", site.line), getattr(node, "end_lineno", site.end_line)
    return site._replace(line=line, end_line=end, column=getattr(node, "col_offset", -1))


def call_at(site: Site) -> ast.Call | None:
    for node in _nodes(site.file):
        if isinstance(node, ast.Call) and _extent(node) == (site.line, site.column, site.end_line, site.end_column):
            return node
    return None


def _extent(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def argument(site: Site, number: int) -> Site | None:
    """The line of one argument of a call, such as an element of `nn.Sequential(…)`."""
    call = call_at(site)
    if call is None or number >= len(call.args):
        return None
    if any(isinstance(one, ast.Starred) for one in call.args[: number + 1]):
        return None
    return at(site, call.args[number])


def block_head(site: Site, operation: str) -> Site | None:
    """The head of the `with` around this line, or the decorator of its function, that says so."""
    best: ast.AST | None = None
    for node in _nodes(site.file):
        if not getattr(node, "lineno", 0) <= site.line <= (getattr(node, "end_lineno", 0) or 0):
            continue
        heads: list[ast.expr] = []
        if isinstance(node, ast.With):
            heads = [item.context_expr for item in node.items]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            heads = node.decorator_list
        for head in heads:
            if HEADS[operation].search(ast.unparse(head)) and (best is None or head.lineno > best.lineno):  # pyright: ignore[reportAttributeAccessIssue]
                best = head
    return None if best is None else at(site, best)


def settings_assigned(file: str) -> Iterator[tuple[str, int, int]]:
    """Lines such as `group["lr"] = …`: the setting, the line and the last line."""
    for node in _nodes(file):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                name = target.slice.value
                if isinstance(name, str) and "group" in ast.unparse(target.value):
                    yield name, node.lineno, node.end_lineno or node.lineno  # pyright: ignore[reportAttributeAccessIssue]


def function_at(file: str, line: int) -> str:
    """The qualified name of the function around a line."""
    names = [
        node.name
        for node in _nodes(file)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return ".".join(names) or "<module>"


def assignment(file: str, target: str, function: str = "") -> ast.stmt | None:
    """The only statement that gives this variable or attribute (`self.head`) a value made by a call."""
    found = [
        node
        for node in _nodes(file)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and node.value is not None
        and any(isinstance(one, ast.Call) for one in ast.walk(node.value))
        and target in [ast.unparse(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])]
        and (not function or function in function_at(file, node.lineno))
    ]
    return found[0] if len(found) == 1 else None

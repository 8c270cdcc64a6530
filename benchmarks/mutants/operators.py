"""What can be wrong with a function: every small change of it that a test should notice.

Left alone is what no test could or should see: docstrings, annotations, decorators, prose, `stacklevel`, how long is
waited, None for False, and whether a measured number may be exactly at its limit: only counts can be.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

NOT_RUN = ("returns", "annotation", "decorator_list", "type_comment", "type_params")

NEGATED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
WORD = re.compile(r"[A-Za-z_][\w./-]+")  # a name that the program goes by; whatever has spaces is prose
COUNT = re.compile(
    r"len\(|count|step|size|number|place|index|rank|frames|rows|columns|(?<![\w.])(?<!\*\* )\d+(?![\w.])"
)
EITHER_WAY = {
    "max",
    "min",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "hypot",
    "gcd",
    "logical_and",
    "logical_or",
    "isclose",
}
UNSEEN_KEYWORDS = {"stacklevel", "name", "daemon", "timeout"}
WAITING = {"sleep", "wait", "join", "poll", "settimeout"}  # with a number of seconds


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a file, and what to write there instead."""

    operator: str
    node: ast.expr | ast.stmt
    text: str


def sites(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Site]:
    is_generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    for node, anchor in _within(function, None):
        if anchor is not None:  # inside an f-string, whose parts have no places of their own
            yield from _edited(node, anchor)
            continue
        if isinstance(node, ast.expr):
            yield from _edited(node, node)
        yield from _replaced(node, is_generator)
    arguments = function.args
    for default in [*arguments.defaults, *(value for value in arguments.kw_defaults if value is not None)]:
        for site in _edited(default, default):
            yield Site("default", site.node, site.text)


def _within(node: ast.AST, anchor: ast.expr | None) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Every part of it that does something, with the f-string that it is in."""
    for name, value in ast.iter_fields(node):
        if name in NOT_RUN or isinstance(node, ast.arguments):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child) or _is_waited(node, child):
                continue
            yield child, anchor
            yield from _within(child, anchor or (child if isinstance(child, ast.JoinedStr) else None))


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring or an ellipsis
    return isinstance(node, ast.keyword) and node.arg in UNSEEN_KEYWORDS


def _is_waited(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(child, ast.Constant) and _last_name(node.func) in WAITING


def _is_measured(node: ast.Compare) -> bool:
    """Whether it is no count that is compared, but a number that a tensor or a clock gave."""
    return any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in ast.walk(node))


def _edited(node: ast.AST, anchor: ast.expr) -> Iterator[Site]:
    """Changes within an expression."""

    def site(operator: str, field: str, value: object) -> Site:
        before = getattr(node, field)
        setattr(node, field, value)
        text = ast.unparse(anchor)
        setattr(node, field, before)
        bracketed = isinstance(anchor, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp)
        return Site(operator, anchor, f"({text})" if bracketed else text)

    match node:
        case ast.Compare(ops=[first, *others]):
            yield site("comparison", "ops", [NEGATED[type(first)](), *others])
            if type(first) in BOUNDARY and COUNT.search(ast.unparse(node)) and not _is_measured(node):
                yield site("boundary", "ops", [BOUNDARY[type(first)](), *others])
        case ast.BoolOp(op=connective):
            yield site("connective", "op", ast.Or() if isinstance(connective, ast.And) else ast.And())
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not _is_text(node):
            yield site("arithmetic", "op", ARITHMETIC[type(operator)]())
        case ast.IfExp(test=test):
            yield site("condition", "test", ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield site("constant", "value", not value)
        case ast.Constant(value=int(value)):
            yield site("constant", "value", value + 1)
        case ast.Constant(value=float(value)):
            yield site("constant", "value", value * 2 if value else 1.0)
        case ast.Constant(value=str(value)) if WORD.fullmatch(value) and anchor is node:
            yield site("name", "value", value + "x")
        case ast.Call(args=[first, second, *others]) if not isinstance(first, ast.Starred) and not isinstance(
            second, ast.Starred
        ):
            if ast.dump(first) != ast.dump(second) and _last_name(node.func) not in EITHER_WAY:
                yield site("arguments", "args", [second, first, *others])


def _replaced(node: ast.AST, is_generator: bool) -> Iterator[Site]:
    """Statements and whole expressions with something else in their place."""
    match node:
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield Site("negation", node, f"({ast.unparse(operand)})")
        case ast.If(test=test) | ast.While(test=test):
            if not (isinstance(node, ast.While) and isinstance(test, ast.Constant)):
                yield Site("condition", test, f"(not ({ast.unparse(test)}))")
        case ast.comprehension(ifs=conditions):
            for condition in conditions:
                yield Site("condition", condition, f"(not ({ast.unparse(condition)}))")
        case ast.AugAssign(target=target, op=operator, value=value):
            yield Site("statement", node, "pass")
            if type(operator) in ARITHMETIC:
                changed = ast.AugAssign(target, ARITHMETIC[type(operator)](), value)
                yield Site("arithmetic", node, ast.unparse(changed))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield Site("statement", node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield Site("statement", node, "pass")
        case ast.Break():
            yield Site("loop", node, "continue")
        case ast.Continue():
            yield Site("loop", node, "break")
        case ast.Return(value=ast.expr() as value) if not is_generator:
            if not (isinstance(value, ast.Constant) and (value.value is None or value.value is False)):
                yield Site("return", node, "return None")
        case _:
            pass


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.BinOp) -> bool:
    """Whether it joins or fills a text: nothing but a TypeError would come of it."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )

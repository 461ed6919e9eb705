"""The mutations: each changes one comparison, operator, number, condition, return value or statement of a function.

Strings are not changed: tests that run the SQL and read the messages check their text.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# Calls that affect no return value and no decision.
_SPARED = ("log.", "warnings.")
_WIDTH = 100
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change: in `function` (qualified name, its first `lineno`), at `line`, from `before` to `after`.

    `nth` distinguishes equal changes of one function; `compile` returns the whole module with the change.
    """

    function: str
    lineno: int
    line: int
    before: str
    after: str
    nth: int
    compile: Callable[[], CodeType]

    @property
    def key(self) -> str:
        """The mutant's name in lists; it does not change when lines move."""
        return f"{self.function}: {self.before} -> {self.after}" + (f" #{self.nth + 1}" if self.nth else "")


def build_mutants(text: str, filename: str) -> Iterator[Mutant]:
    """Every mutant of the functions of a module."""
    tree = ast.parse(text)
    for name, function in _find_functions(tree.body, ""):
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        times: Counter[tuple[str, str]] = Counter()
        for node, put in _find_slots(function):
            for changed in _build_changes(node):
                before, after = _format_node(node), _format_node(changed)
                compiled = partial(_compile_changed, tree, filename, put, node, changed)
                yield Mutant(name, first, node.lineno, before, after, times[before, after], compiled)
                times[before, after] += 1


def compute_digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Function]]:
    """Functions that exist after the module is loaded, by qualified name; nested functions belong to the outer one."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _find_functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, _Function):
            yield f"{prefix}{node.name}", node


_Node = ast.expr | ast.stmt


def _compile_changed(
    tree: ast.Module, filename: str, put: Callable[[_Node], None], node: _Node, changed: _Node
) -> CodeType:
    """The module compiled with `changed` in place of `node`; `node` is put back afterwards."""
    put(ast.copy_location(changed, node))
    try:
        return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
    finally:
        put(node)


def _find_slots(parent: ast.AST) -> Iterator[tuple[_Node, Callable[[_Node], None]]]:
    """Each expression and statement of a function's body, with a function that replaces it."""
    for field, value in ast.iter_fields(parent):
        if isinstance(parent, _Function | ast.AnnAssign) and field not in ("body", "value"):
            continue
        if isinstance(value, list):
            for number, node in enumerate(value):
                if isinstance(node, ast.AST):
                    yield from _find_changeable_nodes(node, partial(value.__setitem__, number))
        elif isinstance(value, ast.AST):
            yield from _find_changeable_nodes(value, partial(setattr, parent, field))


def _find_changeable_nodes(
    node: ast.AST, put: Callable[[_Node], None]
) -> Iterator[tuple[_Node, Callable[[_Node], None]]]:
    if isinstance(node, ast.JoinedStr | ast.Raise) or _is_spared(node):
        # Messages are not changed; whether an error is raised is tested by removing the statement.
        if isinstance(node, ast.Raise):
            yield node, put
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node, put
    yield from _find_slots(node)


def _is_spared(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(_SPARED)


def _build_changes(node: _Node) -> Iterator[_Node]:
    if isinstance(node, ast.expr):
        yield from _build_changed_expressions(node)
        return
    if isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break | ast.Delete) or _is_call(node):
        yield ast.Pass()
    if isinstance(node, ast.Return) and node.value is not None and not _is_constant_bool_or_none(node.value):
        yield ast.Return(ast.Constant(None))
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):
        yield _with_test(node, _negate(node.test))


def _build_changed_expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for number, op in enumerate(node.ops):
            ops = [_COMPARISONS[type(op)]() if n == number else one for n, one in enumerate(node.ops)]
            yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(_negate(node.test), node.body, node.orelse)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)


def _negate(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _with_test(node: ast.If | ast.While, test: ast.expr) -> ast.stmt:
    return type(node)(test, node.body, node.orelse)


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom | ast.Await)


def _is_constant_bool_or_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _is_text(node: ast.BinOp) -> bool:
    """True for adding or formatting strings: any change of the operator raises TypeError."""
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def _format_node(node: _Node) -> str:
    """The node as code; for a statement with a body its first line."""
    line = ast.unparse(node).split("\n")[0]
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]}...{compute_digest(line)[:4]}"

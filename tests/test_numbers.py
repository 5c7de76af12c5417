"""A number that may be missing is compared with None: 0.0 is a number, and false."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("finrl_pod", "envs/finrl_pod_envs", "strategies/finrl_pod_strategies", "app/finrl_pod_app", "benchmarks")
NUMBERS = {"int", "float", "Decimal"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def may_be_missing(annotation: ast.expr | None) -> bool:
    """Whether an annotation is a number or None."""
    parts = set() if annotation is None else {part.strip() for part in ast.unparse(annotation).split("|")}
    return "None" in parts and len(parts) > 1 and parts <= NUMBERS | {"None"}


def conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are tested for truth; not `x or 0`, where a missing number counts as zero."""
    for child in ast.walk(node):
        if isinstance(child, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield child.test
        elif isinstance(child, ast.comprehension):
            yield from child.ifs
        elif isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not):
            yield child.operand
        elif isinstance(child, ast.BoolOp):
            is_zero = isinstance(child.op, ast.Or) and ast.unparse(child.values[-1]) in ("0", "0.0", "ZERO")
            yield from () if is_zero else child.values[:-1]


@pytest.mark.slow
def test_numbers_that_may_be_missing_are_compared_with_none() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "peers" not in path.parts]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    fields: dict[str, bool] = {}  # whether it may be missing in every class that has it
    results: dict[str, bool] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        name = field.target.id
                        fields[name] = fields.get(name, True) and may_be_missing(field.annotation)
            elif isinstance(node, Function):
                results[node.name] = results.get(node.name, True) and may_be_missing(node.returns)
    wrong = []
    for path, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
            arguments = [*function.args.args, *function.args.kwonlyargs]
            names = {argument.arg for argument in arguments if may_be_missing(argument.annotation)}

            def is_number(value: ast.expr, names: set[str] = names) -> bool:
                match value:
                    case ast.NamedExpr(value=inner):
                        return is_number(inner, names)
                    case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                        return results.get(name, False)
                    case ast.Attribute(attr=name):
                        return fields.get(name, False)
                return isinstance(value, ast.Name) and value.id in names

            wrong += [f"{path.relative_to(ROOT)}:{x.lineno}" for x in conditions(function) if is_number(x)]
    assert not wrong

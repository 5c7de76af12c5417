"""Commands print JSON through one function, and no NaN or infinity gets into it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import finrl_pod_app.cli
import numpy as np
import pytest
from finrl_pod_app.cli.options import print_json

MODULES = sorted(Path(finrl_pod_app.cli.__file__).parent.glob("*.py"))


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": float("inf"), "a": [np.nan, {"c": np.float64(-np.inf)}], "d": np.array([1.0, np.nan])})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, {"c": None}], "b": None, "d": [1.0, None]}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_command_with_json_uses_the_one_writer(module: Path) -> None:
    tree = ast.parse(module.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    printed = [ast.unparse(call) for call in calls]
    if module.stem not in ("options", "console_evaluation"):  # the writer, and a cell of a table
        assert not {"json.dumps", "json.dump"} & set(printed)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if any(argument.arg == "as_json" for argument in function.args.args):
            assert "as_json" in {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}, function.name

"""The notebooks run from top to bottom, hold no outputs, and are listed."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from finrl_pod.data import features

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setattr(features, "_FEATURES", dict(features._FEATURES))
    threads = torch.get_num_threads()
    names: dict[str, Any] = {"__name__": "notebook"}
    with contextlib.chdir(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, cell in enumerate(code_of(notebook)):
            exec(compile(cell, f"{notebook.name}, code cell {i + 1}", "exec"), names)
    torch.set_num_threads(threads)


def test_five_notebooks_are_listed() -> None:
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "index.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.name for path in NOTEBOOKS]
    assert len(NOTEBOOKS) >= 5


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_draw_a_figure(notebook: Path) -> None:
    assert any(".plot(" in cell for cell in code_of(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None

"""What user code opens is recorded with the part that our code called; other files are not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod import opened_files, user_files
from finrl_pod.data.features import compute
from finrl_pod.data.store import Store
from finrl_pod.evaluate.audit.data_checks import unseen_reader_findings
from finrl_pod.types import Panel
from tests.data.panels import panel

PANEL = panel(np.full((5, 2), 3.0))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, set[str]]]:
    """Compute a feature of a file with this text; returns readers by the target that they opened, without folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    (tmp_path / "later.csv").write_text("1\n")

    def run(text: str) -> dict[str, set[str]]:
        (tmp_path / "own.py").write_text(f"import numpy as np\nfrom pathlib import Path\n{text}")
        begin = opened_files.number()
        compute(PANEL, ("own.py:mine",))
        targets: dict[str, set[str]] = {}
        for entry in opened_files.opened_files(begin):
            targets.setdefault(os.path.basename(entry.target), set()).add(os.path.basename(entry.reader))
        return targets

    return run


FEATURE = "def mine(panel):\n    return panel.close\n"


@pytest.mark.parametrize(
    "text",
    [
        f"Path('later.csv').read_text()\n{FEATURE}",
        "def mine(panel):\n    return panel.close * float(Path('later.csv').read_text())\n",
        "import os\ndef mine(panel):\n    os.close(os.open('later.csv', os.O_RDONLY))\n    return panel.close\n",
        "def mine(panel):\n    return panel.close * np.loadtxt('later.csv')\n",
    ],
)
def test_files_are_recorded_however_they_are_read(opened: Callable[[str], dict[str, set[str]]], text: str) -> None:
    assert opened(text) == {"later.csv": {"own.py"}}


def test_neighbours_belong_to_the_part_that_calls_them(
    opened: Callable[[str], dict[str, set[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opened_neighbour.py").write_text("from pathlib import Path\nTEXT = Path('later.csv').read_text()\n")
    monkeypatch.delitem(sys.modules, "opened_neighbour", raising=False)
    assert opened(f"import opened_neighbour\n{FEATURE}") == {"later.csv": {"own.py"}}


def test_other_prices_of_the_store_are_recorded(opened: Callable[[str], dict[str, set[str]]], tmp_path: Path) -> None:
    Store(tmp_path / "store").save(panel(np.full((5, 2), 3.0), name="other"))
    text = "from finrl_pod.data.store import Store\ndef mine(panel):\n    return Store().load('other').close\n"
    assert any(name.endswith(".parquet") for name in opened(text))


def test_connections_and_processes_are_recorded(opened: Callable[[str], dict[str, set[str]]]) -> None:
    text = "import sqlite3\ndef mine(panel):\n    sqlite3.connect('quotes.sqlite').close()\n    return panel.close\n"
    assert opened(text) == {"sqlite3.connect quotes.sqlite": {"own.py"}}


@pytest.mark.parametrize(
    "text",
    [
        f"open('written.csv', 'w').close()\n{FEATURE}",
        f"import os\nos.close(os.open('written.csv', os.O_WRONLY | os.O_CREAT))\n{FEATURE}",
        f"open('later.csv', 'w+').close()\n{FEATURE}",
        f"import os, tempfile\nos.close(tempfile.mkstemp(dir='.')[0])\n{FEATURE}",
        f"import json.tool, zoneinfo\nzoneinfo.ZoneInfo('Europe/Berlin')\n{FEATURE}",
    ],
)
def test_written_files_and_those_of_python_are_not_recorded(
    opened: Callable[[str], dict[str, set[str]]], text: str
) -> None:
    assert opened(text) == {}


def test_files_of_the_program_itself_are_not_recorded(tmp_path: Path) -> None:
    opened_files.watch()
    begin = opened_files.number()
    (tmp_path / "text.txt").write_text("1")
    (tmp_path / "text.txt").read_text()
    user_files.source_text(Path(__file__))
    assert opened_files.opened_files(begin) == ()


@pytest.mark.parametrize(("caller", "readers"), [("finrl_pod_app.caller", set()), ("finrl_pod_user_own", {"own.py"})])
def test_packages_outside_of_the_python_installation_are_no_user_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str, readers: set[str]
) -> None:
    """The command line calls typer, which calls a command, which opens files of the run."""
    packages = tmp_path / "packages"
    (packages / "other_typer-1.0.dist-info").mkdir(parents=True)
    (packages / "other_typer.py").write_text("def call(function):\n    return function()\n")
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.syspath_prepend(str(packages))

    scope: dict[str, Any] = {"__name__": caller}
    exec(compile(f"def command():\n    open({str(tmp_path / 'run.json')!r}).close()\n", "own.py", "exec"), scope)
    main: dict[str, Any] = {"__name__": "finrl_pod_app.main"}
    exec("import other_typer\ndef main(command):\n    other_typer.call(command)\n", main)
    opened_files.watch()
    begin = opened_files.number()
    main["main"](scope["command"])
    assert {entry.reader for entry in opened_files.opened_files(begin)} == readers


def test_functions_without_a_file_of_their_own_are_recorded(tmp_path: Path) -> None:
    """Such as those of a notebook, whose cells are compiled under names of their own."""
    (tmp_path / "text.txt").write_text("1")
    scope: dict[str, Callable[[Panel], object]] = {}
    text = f"def mine(panel):\n    open({str(tmp_path / 'text.txt')!r}).close()\n    return panel.close\n"
    exec(compile(text, "<ipython-input-1>", "exec"), scope)
    opened_files.watch()
    begin = opened_files.number()
    from finrl_pod.data.features import compute_one, own_feature

    compute_one(PANEL, own_feature("mine", scope["mine"]))
    (entry,) = opened_files.opened_files(begin)
    assert (entry.reader, entry.target) == ("<ipython-input-1>", str(tmp_path / "text.txt"))


def test_readers_that_python_does_not_see_are_named() -> None:
    files = {
        "own@0123456789abcdef.py": "import pandas as pd\ndef f(panel):\n    return pd.read_parquet('x.parquet')\n",
        "other.py": "import h5py\nfrom polars import scan_csv\n",
        "honest.py": "import pandas as pd\nx = pd.read_csv('seen.csv')\n",
    }
    first, second = unseen_reader_findings(files)
    assert (first.status, first.part) == ("warn", "own.py")
    assert "own.py uses read_parquet, whose files" in first.message
    assert "other.py uses h5py, scan_csv, whose files" in second.message

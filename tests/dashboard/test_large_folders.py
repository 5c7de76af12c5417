"""Folders of many large runs: search, summary, and an overview that loads no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from finrl_pod_app.dashboard.queries import runs, training
from finrl_pod_app.dashboard.settings import RUNS_VARIABLE

from tests.dashboard.page_figures import SCRIPT
from tests.dashboard.synthetic_runs import make_runs

pytestmark = pytest.mark.slow

DRAW = """
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_string(sys.argv[1].replace("NAME", "overview"), default_timeout=60).run()
assert not app.exception and not app.error, app
assert app.dataframe
print([name for name in ("torch", "sqlalchemy") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def many_runs(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    make_runs(root, finished, runs=20)
    return root


def test_large_run_is_read_completely(many_runs: Path) -> None:
    found = runs.find_runs(many_runs)
    assert len(found) == 20
    summary = runs.summarise(found[0])
    assert (summary.error, summary.generation) == ("", 4)
    generations = [training.read_generation(file) for file, _ in training.generation_files(found[0])]
    agents = training.agents_table(found[0], generations)
    assert len(agents) == 200
    assert len(training.learning_curve(generations, "reward")) == 4 * 12
    assert training.leaderboard(agents, 3)["score"].iloc[0] == agents["score"].max()


@pytest.mark.slow
def test_overview_loads_no_torch(many_runs: Path, tmp_path: Path) -> None:
    """Loading torch takes seconds, for which the first visitor would wait."""
    environment = {**os.environ, RUNS_VARIABLE: str(many_runs), "FINRL_POD_HOME": str(tmp_path)}
    command = [sys.executable, "-c", DRAW, SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

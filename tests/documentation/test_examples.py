"""The programs in examples/: short, listed in the docs, and each runs in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import finrl_pod as fp

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 40
SECONDS = 200


def test_examples_are_short_and_listed() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\.\./examples/(\w+\.py)\)", (ROOT / "docs/examples.md").read_text(), re.M)
    assert sorted(listed) == [(path.name, path.name) for path in EXAMPLES]
    assert len(EXAMPLES) == 8
    assert [path.name for path in EXAMPLES if len(path.read_text().splitlines()) >= MAX_LINES] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_the_public_api(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"finrl_pod[\w.]+ import|import finrl_pod\.", text) == []
    assert set(re.findall(r"\bfp\.(\w+)", text)) <= set(fp.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {**os.environ, "FINRL_POD_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    process = subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert process.returncode == 0, process.stderr[-1000:]
    assert "Traceback" not in process.stderr
    assert process.stdout

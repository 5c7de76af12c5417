"""Run `simulated_device.py` in a new process: the device must be registered before the first gradient is computed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CASES = "tests/contract/simulated_device.py"


def test_algorithms_stay_on_their_device() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", CASES, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}{run.stderr[-2000:]}"
    assert "38 passed" in run.stdout

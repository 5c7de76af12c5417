"""Runs `on_a_device.py` in a process in which no gradient was taken before the device was made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = "tests/contract/on_a_device.py"


def test_algorithms_stay_on_their_device() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", CASES, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}{run.stderr[-2000:]}"
    assert "31 passed" in run.stdout

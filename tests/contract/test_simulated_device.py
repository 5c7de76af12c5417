"""Run `simulated_device.py` in a new process: the device must be registered before the first gradient is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CASES = "tests/contract/simulated_device.py"


def test_algorithms_stay_on_their_device() -> None:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to load
    command = [sys.executable, "-m", "pytest", CASES, "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, f"{run.stdout[-4000:]}{run.stderr[-2000:]}"
    assert "38 passed" in run.stdout

"""Run the tests of the GPU kernels in Triton's interpreter, which has to be turned on before Triton is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from finrl_pod.native.kernel_launch import INTERPRET, is_triton_installed
from tests.gpu.conftest import LAUNCHES

ROOT = Path(__file__).parents[2]
CASES = ("-k", "triton", "tests/gpu", "-p", "no:cacheprovider", "-p", "pytest_timeout")


@pytest.mark.slow
@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
def test_kernels_in_the_interpreter(tmp_path: Path) -> None:
    launches = tmp_path / "launches.json"
    environment = {**os.environ, INTERPRET: "1", LAUNCHES: str(launches)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins take seconds to load
    environment["HYPOTHESIS_PROFILE"] = "deterministic"  # the launches of the record
    command = [sys.executable, "-m", "pytest", *CASES]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, f"{run.stdout[-4000:]}{run.stderr[-2000:]}"
    assert int(re.findall(r"(\d+) passed", run.stdout)[-1]) >= 10
    assert "skipped" not in run.stdout.splitlines()[-1]
    assert launches.read_text() == (ROOT / "benchmarks" / "test_launches.json").read_text()

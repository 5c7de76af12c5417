"""Sizes and import times of an installation from a wheel, for the table of docs/installation.md."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.results import ROOT
from benchmarks.harness.rows import Row, median_row, single_row
from finrl_pod.errors import SetupError

COMMANDS = {
    "import finrl_pod": ["python", "-c", "import finrl_pod"],
    "finrl_pod.prepare loaded (torch, numpy, pandas)": ["python", "-c", "import finrl_pod; finrl_pod.prepare"],
    "finrl-pod --version": ["finrl-pod", "--version"],
    "finrl-pod doctor": ["finrl-pod", "doctor"],
}
PACKAGES = ("finrl_pod", "finrl_pod_app", "finrl_pod_envs", "finrl_pod_strategies")
MEBIBYTE = 2**20


@dataclass(frozen=True)
class InstallationSettings:
    """Settings of `installation`. runs: repetitions of each command after one that does not count."""

    runs: int = 5


def file_size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def run(*command: str | Path) -> float:
    """Run a command and return its processor time (other work changes it little). Raises SetupError if it fails."""
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode not in (0, 1):
        raise SetupError(f"{command} ended with exit code {process.returncode}: {process.stdout}{process.stderr}")
    return usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime


def installation_rows(settings: InstallationSettings) -> Iterator[Row]:
    """Build the wheel, install it, and measure."""
    with tempfile.TemporaryDirectory(prefix="finrl-pod-installation-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        run(sys.executable, "-m", "venv", folder / "venv")
        (packages,) = (folder / "venv/lib").glob("python*/site-packages")
        empty_size = file_size(packages)
        run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
        os.environ["FINRL_POD_HOME"] = str(folder / "home")
        sizes = {
            "wheel": file_size(wheel),
            "installed: finrl_pod": sum(file_size(packages / package) for package in PACKAGES),
            "installed: torch": file_size(packages / "torch"),
            "installed: everything": file_size(packages) - empty_size,
        }
        for label, size in sizes.items():
            yield single_row(label, round(size / MEBIBYTE, 1), "MiB")
        for label, (program, *arguments) in COMMANDS.items():
            seconds = [run(folder / "venv/bin" / program, *arguments) for _ in range(settings.runs + 1)]
            yield median_row(label, seconds[1:], "s of processor time", {"runs": settings.runs})

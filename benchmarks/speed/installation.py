"""Sizes and import times of an installation from a wheel, in an empty environment.

python -m benchmarks installation --out benchmarks/installation.json
python -m benchmarks installation --table   # the table of docs/installation.md, from that file
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.results import FOLDER, ROOT

RECORDED = FOLDER / "installation.json"
RUNS = 5
TIMED = {
    "import finrl_pod": ["python", "-c", "import finrl_pod"],
    "finrl_pod.prepare loaded (torch, numpy, pandas)": ["python", "-c", "import finrl_pod; finrl_pod.prepare"],
    "finrl-pod --version": ["finrl-pod", "--version"],
    "finrl-pod doctor": ["finrl-pod", "doctor"],
}
MEBIBYTE = 2**20


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def run(*command: str | Path) -> None:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def cpu_seconds(programs: Path) -> dict[str, float]:
    """Processor time of each command: median of `RUNS` after one that is not counted. Other work changes it little."""
    seconds = {}
    for label, (program, *rest) in TIMED.items():
        taken = []
        for _ in range(RUNS + 1):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(programs / program, *rest)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        seconds[label] = round(statistics.median(taken[1:]), 2)
    return seconds


def measure() -> dict[str, object]:
    """Build the wheel, install it, and measure."""
    with tempfile.TemporaryDirectory(prefix="finrl-pod-installation-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        run(sys.executable, "-m", "venv", folder / "venv")
        (packages,) = (folder / "venv/lib").glob("python*/site-packages")
        empty = size(packages)
        run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
        own = sum(
            size(packages / part) for part in ("finrl_pod", "finrl_pod_app", "finrl_pod_envs", "finrl_pod_strategies")
        )
        torch = size(packages / "torch")
        total = size(packages) - empty
        os.environ["FINRL_POD_HOME"] = str(folder / "home")
        return {
            "python": platform.python_version(),
            "mebibytes": {
                "wheel": round(size(wheel) / MEBIBYTE, 1),
                "installed: finrl_pod": round(own / MEBIBYTE, 1),
                "installed: torch": round(torch / MEBIBYTE),
                "installed: everything": round(total / MEBIBYTE),
            },
            "cpu_seconds": cpu_seconds(folder / "venv/bin"),
        }


def table() -> str:
    """The recorded figures as Markdown."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    rows = [f"| {name} | {value:,} MiB |" for name, value in found["mebibytes"].items()]
    rows += [f"| `{name}` | {value} s of processor time |" for name, value in found["cpu_seconds"].items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RECORDED)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        sys.stdout.write(table() + "\n")
        return
    arguments.out.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")

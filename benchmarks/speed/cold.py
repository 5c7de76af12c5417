"""Measure start-up time and peak memory of commands, as whole processes.

    python -m benchmarks cold --out benchmarks/cold.json

The file cache is warm and kernels are compiled: this measures every start after the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.harness.rows import Row, as_json, as_table, describe, document, median_row

PROGRAM = Path(sys.executable).with_name("finrl-pod")
# arguments, runs
COMMANDS: dict[str, tuple[tuple[str, ...], int]] = {
    "help": (("--help",), 9),
    "backtest": (("backtest", "--strategy", "equal_weight"), 5),
    "demo": (("demo", "--quick", "--out", "{folder}/demo"), 3),
}


# The peak of a process includes its parent's memory at the fork, so a minimal parent starts it.
STARTER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_maxrss / 2**20, os.waitstatus_to_exitcode(status)]))
"""


def measure(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Return seconds and peak memory in GiB of one process.

    Raises CalledProcessError for exit codes other than 0 and 1 (no champion promoted).
    """
    with TemporaryDirectory() as folder:
        command = [str(PROGRAM), *(text.format(folder=folder) for text in arguments)]
        done = subprocess.run([sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, check=True)
    seconds, peak, code = json.loads(done.stdout)
    if code not in (0, 1):
        raise subprocess.CalledProcessError(code, command)
    return seconds, peak


def rows_of(name: str) -> list[Row]:
    arguments, runs = COMMANDS[name]
    measure(arguments)
    seconds, peaks = zip(*(measure(arguments) for _ in range(runs)), strict=True)
    config = {"command": " ".join(("finrl-pod", *arguments)), "runs": runs}
    return [median_row(f"{name}_seconds", seconds, "s", config), median_row(f"{name}_memory", peaks, "GiB", config)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(COMMANDS), help="may be given repeatedly")
    parser.add_argument("--out", type=Path, help="write the JSON to this file")
    options = parser.parse_args()
    rows = [row for name in options.only or COMMANDS for row in rows_of(name)]
    sys.stdout.write(as_table(rows))
    if options.out is not None:
        options.out.write_text(as_json(document(rows, describe(torch.device("cpu")))))

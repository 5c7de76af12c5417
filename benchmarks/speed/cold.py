"""Start-up time and peak memory of commands, as whole processes.

The file cache is warm and kernels are compiled: this measures every start after the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.harness.rows import Row, median_row

PROGRAM = Path(sys.executable).with_name("finrl-pod")
Command = Literal["help", "backtest", "demo"]
# arguments, runs
COMMANDS: dict[Command, tuple[tuple[str, ...], int]] = {
    "help": (("--help",), 9),
    "backtest": (("backtest", "--strategy", "equal_weight"), 5),
    "demo": (("demo", "--quick", "--out", "{folder}/demo"), 3),
}
# The peak of a process includes the memory of its parent at the fork, so a minimal parent starts it.
STARTER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_maxrss / 2**20, os.waitstatus_to_exitcode(status)]))
"""


@dataclass(frozen=True)
class ColdSettings:
    """Settings of `cold`. only: commands to measure; empty for all."""

    only: tuple[Command, ...] = ()


def measure(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Return seconds and peak memory in GiB of one process.

    Raises CalledProcessError for exit codes other than 0 and 1 (no champion promoted).
    """
    with TemporaryDirectory() as folder:
        command = [str(PROGRAM), *(text.format(folder=folder) for text in arguments)]
        process = subprocess.run([sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, check=True)
    seconds, peak, code = json.loads(process.stdout)
    if code not in (0, 1):
        raise subprocess.CalledProcessError(code, command)
    return seconds, peak


def cold_rows(settings: ColdSettings) -> Iterator[Row]:
    """Measure each command after one start that does not count."""
    for name in settings.only or COMMANDS:
        arguments, runs = COMMANDS[name]
        measure(arguments)
        seconds, peaks = zip(*(measure(arguments) for _ in range(runs)), strict=True)
        config = {"command": " ".join(("finrl-pod", *arguments)), "runs": runs}
        yield median_row(f"{name}_seconds", seconds, "s", config)
        yield median_row(f"{name}_memory", peaks, "GiB", config)

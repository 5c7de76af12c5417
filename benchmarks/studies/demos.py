"""The commands of docs/demos.md, each with several seeds.

    python -m benchmarks demos                            # what is missing; a quarter of an hour of processor time
    python -m benchmarks demos --only CartPole-v1         # a part
    python -m benchmarks demos --table                    # existing results

Runs every command of the page with --seed, --evaluate and --out, in a process of its own. Each finished run is a line
of demos.jsonl and is not repeated. Rows: median and range over the seeds of the mean return of 20 episodes without
exploration. LunarLander and BipedalWalker need `gymnasium[box2d]`.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.rows import FOLDER, ROOT, Job, Record, Row, current_commit, median_row, read, run_missing
from finrl_pod.errors import SetupError

PAGE = ROOT / "docs" / "demos.md"
EPISODES = 20
PACKAGES = ("finrl_pod", "torch", "gymnasium", "mujoco", "box2d")


@dataclass(frozen=True)
class DemoSettings:
    """Settings of `demos`. only: names of environments; empty for all. table: print stored results only."""

    only: tuple[str, ...] = ()
    seeds: int = 5
    table: bool = False
    results: Path = FOLDER / "demos.jsonl"


def demo_rows(settings: DemoSettings) -> list[Row]:
    """Run what the file lacks; return the rows of the results of the commands on the page."""
    commands = demo_commands(PAGE.read_text(encoding="utf-8"))
    if not settings.table:
        run_missing(settings.results, jobs(settings, commands))
    return [*rows_of(commands, read(settings.results))]


def demo_commands(text: str) -> dict[str, str]:
    """The commands of a page by environment."""
    lines = re.sub(r"\\\n *", "", text)  # continued lines
    return {match[2]: match[1] for match in re.finditer(r"^(finrl-pod train --env gym:(\S+) .*)$", lines, re.MULTILINE)}


def jobs(settings: DemoSettings, commands: dict[str, str]) -> Iterator[Job]:
    """The selected runs, seed by seed."""
    for seed in range(settings.seeds):
        for env, command in commands.items():
            if not settings.only or env in settings.only:
                yield Job({"env": env, "command": command, "seed": seed}, partial(run_demo, command, seed))


def run_demo(command: str, seed: int) -> dict[str, object]:
    """Run a command and return its scores and seconds. Raises SetupError with its message if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        _, *arguments = shlex.split(command)
        out = Path(folder) / "run"
        options = ["--seed", str(seed), "--evaluate", str(EPISODES), "--out", str(out)]
        program = [sys.executable, "-m", "finrl_pod_app.cli.main", *arguments, *options]
        wall_start = time.perf_counter()
        cpu_start = _children_seconds()
        process = subprocess.run(program, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - wall_start
        if process.returncode:
            raise SetupError((process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return {
        "seconds": round(seconds, 2), "cpu_seconds": round(_children_seconds() - cpu_start, 2),
        "steps": result["steps"], "score": result["evaluation"]["mean"][0], "commit": current_commit(),
        "versions": {name: _version(name) for name in PACKAGES}, "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def _children_seconds() -> float:
    """Processor time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def rows_of(commands: dict[str, str], records: Sequence[Record]) -> Iterator[Row]:
    """A row for each command that has results."""
    for env, command in commands.items():
        results = [record for record in records if record["command"] == command]
        if results:
            medians = {key: float(np.median([r[key] for r in results])) for key in ("cpu_seconds", "seconds")}
            scores = [record["score"] for record in results]
            yield median_row(env, scores, "return", {"command": command, "scores": scores, **medians})

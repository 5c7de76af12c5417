"""Many large runs copied from one, for tests of size and speed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def make_runs(
    root: Path, finished: Path, runs: int = 200, pods: int = 50, generations: int = 4, rows: int = 12
) -> None:
    """Write `runs` copies of a finished run below `root`, each with `pods` agents per generation in its files.

    The agents share the snapshots of the finished run, since only the champion's are loaded.
    """
    state = json.loads((finished / "state.json").read_text())
    agents = [_agent(state["current"][0], g, slot) for g in range(generations) for slot in range(pods)]
    current = agents[-pods:]
    parents = {agent["id"]: agent["parent"] for agent in agents}
    state = {**state, "generation": generations - 1, "current": current, "parents": parents}
    row = {name: [0.1 * slot for slot in range(pods)] for name in ("reward", "entropy", "approx_kl", "value_loss")}
    metrics = [
        {
            "slots": list(range(pods)),
            "agents": agents[g * pods : (g + 1) * pods],
            "rows": [{**row, "samples": [(g * rows + i + 1) * 4096] * pods} for i in range(rows)],
        }
        for g in range(generations)
    ]
    for number in range(runs):
        folder = root / f"run-{number:03d}"
        shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("report.html", "tensorboard", "metrics"))
        (folder / "metrics").mkdir()
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "verdict.json").touch()  # newer than the state
        for g, generation in enumerate(metrics):
            (folder / "metrics" / f"{g:04d}.json").write_text(json.dumps(generation))


def _agent(template: dict[str, Any], generation: int, slot: int) -> dict[str, Any]:
    parent = f"g{generation - 1:02d}s{slot:02d}" if generation else None
    score = float(template["score"]) + 0.01 * ((slot * 7 + generation * 3) % 11)
    agent = {"id": f"g{generation:02d}s{slot:02d}", "parent": parent, "generation": generation, "slot": slot}
    return {**template, **agent, "score": score}

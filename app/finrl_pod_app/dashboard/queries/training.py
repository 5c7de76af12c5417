"""What a tournament has learnt so far: curves over its pods, scores, lineage, and how settings drift."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.files import read_json
from finrl_pod_app.dashboard.queries.runs import STATE, RunFiles

SAMPLES = "samples"
AGENT_COLUMNS = ("id", "parent", "generation", "slot", "samples", "score")
LOW, HIGH = 0.1, 0.9  # quantiles over the pods: the band around a curve


def generation_files(run: RunFiles) -> tuple[tuple[Path, int], ...]:
    """The file of each finished generation with the ns of its last change, the first one first."""
    return tuple((file, file.stat().st_mtime_ns) for file in sorted((run.path / "metrics").glob("[0-9]*.json")))


def read_generation(file: Path) -> dict[str, Any]:
    """A generation's curves and agents as they are on disk. Raises RunError."""
    return read_json(file)


def curve_names(generations: Sequence[Mapping[str, Any]]) -> list[str]:
    """What there are curves of, `reward` first."""
    names = {name for one in generations for row in one["rows"] for name in row if name != SAMPLES}
    return sorted(names, key=lambda name: (name != "reward", name))


def curve(generations: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """How a quantity of the learners went: samples (of one pod, from the run's beginning), middle, low, high, pods.

    middle: the median over the pods; low and high: their quantiles 0.1 and 0.9. Pods whose value is no number are left
    out, and points where there is none. Agents change their slots' lines between generations, so the samples are
    counted over the generations and not by what an agent has inherited.
    """
    points: dict[int, list[float]] = {}
    base = 0
    for generation in generations:
        first: dict[int, int] = {}
        steps = [_step(generation, slot) for slot in range(len(generation["slots"]))]
        reached = 0
        for row in generation["rows"]:
            for slot, (samples, value) in enumerate(zip(row[SAMPLES], row.get(name, ()), strict=False)):
                if samples is None:
                    continue
                start = first.setdefault(slot, samples - steps[slot])
                reached = max(reached, samples - start)
                if value is not None:
                    points.setdefault(base + samples - start, []).append(value)
        base += reached
    places = sorted(points)
    quantiles = [np.quantile(points[place], (0.5, LOW, HIGH)) for place in places]
    frame = pd.DataFrame(quantiles, columns=["middle", "low", "high"], dtype=np.float64)
    frame.insert(0, SAMPLES, places)
    frame["pods"] = [len(points[place]) for place in places]
    return frame


def _step(generation: Mapping[str, Any], slot: int) -> int:
    """Samples of one iteration of a slot: the distance of its first two points, or all of a single one; 0 without."""
    seen = [row[SAMPLES][slot] for row in generation["rows"] if row[SAMPLES][slot] is not None]
    return int(seen[1] - seen[0]) if len(seen) > 1 else int(sum(seen))


def agents(run: RunFiles, generations: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Every agent that is known, a row each in the order of their birth: id, parent, generation, slot, samples, score
    (on validation, NaN where there is none), and its settings under their own names.

    Runs of older versions kept the last generation and the leaderboard alone: then those are what is known.
    """
    rows = [row for one in generations for row in one.get("agents", ())]
    if (run.path / STATE).exists():
        state = read_json(run.path / STATE)
        rows += [*state["leaderboard"], *state["current"]]
    unique = {row["id"]: row for row in rows}
    flat = [{**{name: row[name] for name in AGENT_COLUMNS}, **row["hyperparameters"]} for row in unique.values()]
    frame = pd.DataFrame(flat, columns=None if flat else list(AGENT_COLUMNS))
    frame["score"] = frame["score"].astype(np.float64)
    ordered: pd.DataFrame = frame.sort_values(["generation", "slot"], ignore_index=True)
    return ordered


def board(known: pd.DataFrame, size: int) -> pd.DataFrame:
    """The best `size` agents, best first; ties as the tournament's: fewer samples, then the smaller id."""
    scored = known[np.isfinite(known["score"])]
    best: pd.DataFrame = scored.sort_values(
        ["score", SAMPLES, "id"], ascending=[False, True, True], ignore_index=True
    ).head(size)
    best.insert(0, "rank", np.arange(1, len(best) + 1))
    return best


def settings_of(known: pd.DataFrame) -> list[str]:
    """The settings in which agents differ, by name."""
    names = [name for name in known.columns if name not in AGENT_COLUMNS]
    return [name for name in names if known[name].nunique(dropna=True) > 1]


def drift(known: pd.DataFrame, name: str) -> pd.DataFrame:
    """A setting over the generations: generation, middle, low, high (median and quantiles 0.1 and 0.9 over the pods)
    and best, the setting of the agent that scored best."""
    rows = []
    for generation, group in known.dropna(subset=[name]).groupby("generation"):
        middle, low, high = np.quantile(group[name], (0.5, LOW, HIGH))
        scored = group[np.isfinite(group["score"])]
        best = scored.loc[scored["score"].idxmax(), name] if len(scored) else np.nan
        rows.append((generation, middle, low, high, best))
    return pd.DataFrame(rows, columns=["generation", "middle", "low", "high", "best"])


def ancestors(known: pd.DataFrame, members: Collection[str]) -> set[str]:
    """The members and all that they descend from, as far as they are known."""
    parents = dict(zip(known["id"], known["parent"], strict=True))
    line: set[str] = set()
    waiting = [member for member in members if member in parents]
    while waiting:
        agent = waiting.pop()
        if agent in line or agent not in parents:
            continue
        line.add(agent)
        if isinstance(parents[agent], str):
            waiting.append(parents[agent])
    return line

"""Stage of a training, and learning curves, scores, lineage and hyperparameter drift from its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.tournament.leaderboard import root_limit
from finrl_pod_app.dashboard.queries.run_files import STATE, RunFiles, is_file, read_object

SAMPLES = "samples"
AGENT_COLUMNS = ("id", "parent", "generation", "slot", "samples", "score")
GenerationFiles = tuple[tuple[Path, int], ...]  # each with its modification time in ns
LOW, HIGH = 0.1, 0.9  # quantiles over the pods, the edges of the band around a curve


def generation_files(run: RunFiles) -> GenerationFiles:
    """The file of each finished generation, in order, with its modification time in ns."""
    files = sorted((run.path / "metrics").glob("[0-9]*.json"))
    return tuple((file, os.lstat(file).st_mtime_ns) for file in files if is_file(file))


def read_generation(file: Path) -> dict[str, Any]:
    """The metrics and agents of a generation's file. Raises RunError if it is damaged."""
    values = read_object(file)
    if missing := [name for name in ("slots", "rows", "agents") if name not in values]:
        raise RunError(f"{file} is damaged: {missing[0]} is missing; restore it or start a new run")
    return values


def metric_names(generations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the recorded metrics, `reward` first."""
    names = {name for generation in generations for row in generation["rows"] for name in row if name != SAMPLES}
    return sorted(names, key=lambda name: (name != "reward", name))


def learning_curve(generations: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """A metric of the learners over the run: samples (per pod, from the start of the run), median, low, high, pods.

    median is taken over the pods, low and high are the 10% and 90% quantiles, pods is their number. Missing values
    are skipped, and so are points without any. Samples are counted over generations, not by lineage, because a slot
    may continue another agent in the next generation.
    """
    points: dict[int, list[float]] = {}
    for _, samples, value in _points(generations, name):
        points.setdefault(samples, []).append(value)
    places = sorted(points)
    quantiles = [np.quantile(points[place], (0.5, LOW, HIGH)) for place in places]
    frame = pd.DataFrame(quantiles, columns=["median", "low", "high"], dtype=np.float64)
    frame.insert(0, SAMPLES, places)
    frame["pods"] = [len(points[place]) for place in places]
    return frame


def pod_curves(generations: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """A metric of each pod over the run: slot, samples (as in `learning_curve`), value; by slot, then samples."""
    frame = pd.DataFrame(_points(generations, name), columns=["slot", SAMPLES, "value"])
    ordered: pd.DataFrame = frame.sort_values(["slot", SAMPLES], kind="stable", ignore_index=True)
    return ordered


def _points(generations: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[int, int, float]]:
    """(slot, samples from the start of the run, value) of every recorded value of a metric."""
    base = 0
    for generation in generations:
        first: dict[int, int] = {}
        steps = [_samples_per_iteration(generation, slot) for slot in range(len(generation["slots"]))]
        reached = 0
        for row in generation["rows"]:
            for slot, (samples, value) in enumerate(zip(row[SAMPLES], row.get(name, ()), strict=False)):
                if samples is None:
                    continue
                start = first.setdefault(slot, samples - steps[slot])
                reached = max(reached, samples - start)
                if value is not None:
                    yield int(generation["slots"][slot]), base + samples - start, value
        base += reached


def _samples_per_iteration(generation: Mapping[str, Any], slot: int) -> int:
    """Samples per iteration of a slot: the distance of its first two points, a single point's samples, or 0."""
    counts = [row[SAMPLES][slot] for row in generation["rows"] if row[SAMPLES][slot] is not None]
    return int(counts[1] - counts[0]) if len(counts) > 1 else int(sum(counts))


def agents_table(run: RunFiles, generations: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per agent, by generation and slot: id, parent, generation, slot, samples, score, hyperparameters.

    score is on validation, NaN if there is none.
    """
    rows = [row for generation in generations for row in generation["agents"]]
    if run.has(STATE):
        state = read_object(run.path / STATE)
        rows += [*state["leaderboard"], *state["current"]]
    unique = {row["id"]: row for row in rows}
    flat = [{**{name: row[name] for name in AGENT_COLUMNS}, **row["hyperparameters"]} for row in unique.values()]
    frame = pd.DataFrame(flat, columns=None if flat else list(AGENT_COLUMNS))
    frame["score"] = frame["score"].astype(np.float64)
    ordered: pd.DataFrame = frame.sort_values(["generation", "slot"], ignore_index=True)
    return ordered


def leaderboard(agents: pd.DataFrame, size: int) -> pd.DataFrame:
    """The best `size` agents, best first. Ties are resolved as in the tournament: fewer samples, then smaller id.

    Agents of one root beyond `root_limit` come after all others, as in `tournament.leaderboard`.
    """
    order = {"by": ["score", SAMPLES, "id"], "ascending": [False, True, True], "ignore_index": True}
    scored = agents[np.isfinite(agents["score"])].sort_values(**order)
    parents = dict(zip(agents["id"], agents["parent"], strict=True))
    roots = scored["id"].map(lambda agent: _root(agent, parents))
    beyond = scored.groupby(roots).cumcount() >= root_limit(size)
    best: pd.DataFrame = pd.concat([scored[~beyond], scored[beyond]]).head(size).sort_values(**order)
    best.insert(0, "rank", np.arange(1, len(best) + 1))
    return best


def _root(agent: str, parents: Mapping[str, Any]) -> str:
    """Id of the first ancestor of an agent."""
    while isinstance(parent := parents.get(agent), str):
        agent = parent
    return agent


def varied_hyperparameters(agents: pd.DataFrame) -> list[str]:
    """Names of the hyperparameters in which agents differ."""
    names = [name for name in agents.columns if name not in AGENT_COLUMNS]
    return [name for name in names if agents[name].nunique(dropna=True) > 1]


def hyperparameter_drift(agents: pd.DataFrame, name: str) -> pd.DataFrame:
    """A hyperparameter by generation: generation, median, low, high, best.

    median, low and high are the median and the 10% and 90% quantiles over the pods; best is the value of the agent with
    the best score.
    """
    rows = []
    for generation, group in agents.dropna(subset=[name]).groupby("generation"):
        median, low, high = np.quantile(group[name], (0.5, LOW, HIGH))
        scored = group[np.isfinite(group["score"])]
        best = scored.loc[scored["score"].idxmax(), name] if len(scored) else np.nan
        rows.append((generation, median, low, high, best))
    return pd.DataFrame(rows, columns=["generation", "median", "low", "high", "best"])


def ancestors(agents: pd.DataFrame, members: Collection[str]) -> set[str]:
    """The members and all their known ancestors."""
    parents = dict(zip(agents["id"], agents["parent"], strict=True))
    found: set[str] = set()
    waiting = [member for member in members if member in parents]
    while waiting:
        agent = waiting.pop()
        if agent in found or agent not in parents:
            continue
        found.add(agent)
        if isinstance(parents[agent], str):
            waiting.append(parents[agent])
    return found


@dataclass(frozen=True)
class Stage:
    """A stage of a run. words: one of them begins its text in the progress file. end: share of the run at its end.

    The shares are typical of runs of some minutes; only that of the training is known while it runs.
    """

    label: str
    words: tuple[str, ...]
    end: float


STAGES = (
    Stage("Prices and features", ("reading",), 0.04),
    Stage("Compiling kernels", (), 0.08),
    Stage("Training", ("training", "generation"), 0.75),
    Stage("Validating", ("validating",), 0.82),
    Stage("Auditing", ("auditing",), 0.90),
    Stage("Testing", ("testing",), 0.97),
    Stage("Report", ("writing",), 1.0),
)
_COMPILING, _TRAINING = 1, 2


@dataclass(frozen=True)
class Position:
    """Where a run is. stage: place in `STAGES`. share: of the whole run, 0 to 1."""

    stage: int
    share: float


def position(progress: Mapping[str, Any]) -> Position:
    """The position of a run, from the fields of its last `Progress`; the first stage without any.

    Before the first sample of a training its kernels are compiled.
    """
    text = str(progress.get("stage") or "").lower()
    samples, total = (max(float(progress.get(key) or 0), 0.0) for key in ("samples", "total_samples"))
    place = next((i for i, stage in enumerate(STAGES) if any(word in text for word in stage.words)), _TRAINING)
    if not text:
        place = 0
    if place == _TRAINING and not samples:
        place = _COMPILING
    start = STAGES[place - 1].end if place else 0.0
    done = min(samples / total, 1.0) if place == _TRAINING and total else 0.0
    return Position(place, start + done * (STAGES[place].end - start))

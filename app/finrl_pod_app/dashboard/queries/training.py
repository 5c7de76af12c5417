"""Learning curves, scores, lineage and hyperparameter drift of a training, from its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.tournament.leaderboard import root_limit
from finrl_pod_app.dashboard.queries.runs import STATE, RunFiles, is_file, read_object

SAMPLES = "samples"
AGENT_COLUMNS = ("id", "parent", "generation", "slot", "samples", "score")
GenerationFiles = tuple[tuple[Path, int], ...]  # each with its modification time in ns
LOW, HIGH = 0.1, 0.9  # quantiles over the pods, the edges of the band around a curve


def generation_files(run: RunFiles) -> GenerationFiles:
    """The file of each finished generation, in order, with its modification time in ns."""
    files = sorted((run.path / "metrics").glob("[0-9]*.json"))
    return tuple((file, os.lstat(file).st_mtime_ns) for file in files if is_file(file))


class AgentRow(TypedDict):
    """An agent in the files of a run."""

    id: str
    parent: str | None
    generation: int
    slot: int
    samples: int
    score: float | None
    hyperparameters: dict[str, float | None]


@dataclass(frozen=True)
class Generation:
    """The metrics and agents of a generation.

    slots: slot of each pod. rows: values of each metric by pod, one row per iteration.
    """

    slots: list[int]
    rows: list[dict[str, list[float | None]]]
    agents: list[AgentRow]


def read_generation(file: Path) -> Generation:
    """The metrics and agents in the file of a generation. Raises RunError if it is damaged."""
    values = read_object(file)
    if missing := [name for name in ("slots", "rows", "agents") if name not in values]:
        raise RunError(f"{file} is damaged: {missing[0]} is missing; restore it or start a new run")
    return Generation(values["slots"], values["rows"], values["agents"])


def metric_names(generations: Sequence[Generation]) -> list[str]:
    """Names of the recorded metrics, `reward` first."""
    names = {name for generation in generations for row in generation.rows for name in row if name != SAMPLES}
    return sorted(names, key=lambda name: (name != "reward", name))


def learning_curve(generations: Sequence[Generation], name: str) -> pd.DataFrame:
    """A metric of the learners over the run: samples (per pod, from the start of the run), median, low, high, pods.

    median is taken over the pods, low and high are the 10% and 90% quantiles, pods is their number. Missing values
    are skipped, and so are points without any. Samples are counted over generations, not by lineage, because a slot
    may continue another agent in the next generation.
    """
    points: dict[int, list[float]] = {}
    for _, samples, value in _points(generations, name):
        points.setdefault(samples, []).append(value)
    sample_counts = sorted(points)
    quantiles = [np.quantile(points[count], (0.5, LOW, HIGH)) for count in sample_counts]
    frame = pd.DataFrame(quantiles, columns=["median", "low", "high"], dtype=np.float64)
    frame.insert(0, SAMPLES, sample_counts)
    frame["pods"] = [len(points[count]) for count in sample_counts]
    return frame


def _points(generations: Sequence[Generation], name: str) -> Iterator[tuple[int, int, float]]:
    """(slot, samples from the start of the run, value) of every recorded value of a metric."""
    base = 0
    for generation in generations:
        first: dict[int, int] = {}
        steps = []  # samples per iteration of each pod: the distance of its first two points, or its only point
        for pod in range(len(generation.slots)):
            counts = [int(samples) for row in generation.rows if (samples := row[SAMPLES][pod]) is not None]
            steps.append(counts[1] - counts[0] if len(counts) > 1 else sum(counts))
        generation_samples = 0
        for row in generation.rows:
            for pod, (samples, value) in enumerate(zip(row[SAMPLES], row.get(name, ()), strict=False)):
                if samples is None:
                    continue
                start = first.setdefault(pod, int(samples) - steps[pod])
                generation_samples = max(generation_samples, int(samples) - start)
                if value is not None:
                    yield int(generation.slots[pod]), base + int(samples) - start, value
        base += generation_samples


def agents_table(run: RunFiles, generations: Sequence[Generation]) -> pd.DataFrame:
    """One row per agent, by generation and slot: `AGENT_COLUMNS` (score on validation, or NaN), hyperparameters."""
    rows = [row for generation in generations for row in generation.agents]
    if run.has(STATE):
        state = read_object(run.path / STATE)
        rows += [*state["leaderboard"], *state["current"]]
    unique = {row["id"]: row for row in rows}
    flat = [
        {**{name: value for name, value in row.items() if name in AGENT_COLUMNS}, **row["hyperparameters"]}
        for row in unique.values()
    ]
    frame = pd.DataFrame(flat, columns=None if flat else list(AGENT_COLUMNS))
    frame["score"] = frame["score"].astype(np.float64)
    sorted_frame: pd.DataFrame = frame.sort_values(["generation", "slot"], ignore_index=True)
    return sorted_frame


def best_scores(agents: pd.DataFrame) -> pd.Series[float]:
    """The best score so far by generation from 1; empty without scores."""
    scored = agents[np.isfinite(agents["score"])]
    best: pd.Series[float] = scored.groupby("generation")["score"].max().cummax()
    best.index = best.index + 1
    return best


def leaderboard(agents: pd.DataFrame, size: int) -> pd.DataFrame:
    """The best `size` agents, best first. Ties are resolved as in the tournament: fewer samples, then smaller id.

    Agents of one root beyond `root_limit` come after all others, as in `tournament.leaderboard`.
    """
    order = {"by": ["score", SAMPLES, "id"], "ascending": [False, True, True], "ignore_index": True}
    rows = agents[np.isfinite(agents["score"])].sort_values(**order)
    parents = dict(zip(agents["id"], agents["parent"], strict=True))
    roots = rows["id"].map(lambda agent: _root(agent, parents))
    excess = rows.groupby(roots).cumcount() >= root_limit(size)
    best: pd.DataFrame = pd.concat([rows[~excess], rows[excess]]).head(size).sort_values(**order)
    best.insert(0, "rank", np.arange(1, len(best) + 1))
    return best


def _root(agent: str, parents: Mapping[str, str | None]) -> str:
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
        agents_with_score = group[np.isfinite(group["score"])]
        best = agents_with_score.loc[agents_with_score["score"].idxmax(), name] if len(agents_with_score) else np.nan
        rows.append((generation, median, low, high, best))
    return pd.DataFrame(rows, columns=["generation", "median", "low", "high", "best"])


def ancestors(agents: pd.DataFrame, members: Collection[str]) -> set[str]:
    """The members and all their known ancestors."""
    parents = dict(zip(agents["id"], agents["parent"], strict=True))
    members_and_ancestors: set[str] = set()
    for agent in members:
        while agent in parents and agent not in members_and_ancestors:
            members_and_ancestors.add(agent)
            agent = parents[agent]
    return members_and_ancestors

"""Ranking of pods for the next generation: at equal age, and with a lower rank for copies of existing agents.

An agent that started late has had fewer samples than the others. It is therefore ranked among all agents of its age:
agents of this generation, and of earlier generations at the same age. A new agent is not replaced before it has had
`PROTECTED_GENERATIONS` generations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finrl_pod.errors import RunError
from finrl_pod.evaluate.metrics import RISK_EPSILON
from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.leaderboard import root_id
from finrl_pod.types import Floats, Score

BASE = "base"  # name of the base portfolio among agents
NOVELTY = 0.1  # subtracted from a score for a correlation of 1 with all better agents
PROTECTED_GENERATIONS = 2  # before a pod with new weights may be replaced


@dataclass(frozen=True)
class PastScore:
    """The score of an agent, stored for every agent of a tournament. samples: its age; score: NaN if it diverged."""

    slot: int
    generation: int
    samples: int
    score: float


def past_score(score: Score) -> PastScore:
    """The permanently stored part of a score."""
    return PastScore(score.slot, score.generation, score.samples, score.score)


def past_from_dict(row: Mapping[str, Any]) -> PastScore:
    """PastScore from its JSON values, null for NaN. Raises RunError for an invalid row."""
    try:
        return PastScore(**{**row, "score": math.nan if row["score"] is None else float(row["score"])})
    except (TypeError, KeyError, ValueError):
        raise RunError("state.json has an invalid row in its history; restore it or start a new run") from None


@dataclass(frozen=True)
class Comparison:
    """Data for the comparison of the scores of a generation.

    history: scores of all agents of the cohort by id. returns: validation returns [T] by id, base returns under `BASE`;
    agents without returns are not penalised.
    """

    config: TournamentConfig
    history: Mapping[str, PastScore]
    returns: Mapping[str, Floats]

    def age(self, samples: int) -> int:
        return round(samples / self.config.samples_per_generation)

    def is_protected(self, score: Score) -> bool:
        """Whether an agent of new weights, made after the first generation, is too young to be replaced."""
        root = self.history.get(root_id(score))
        started_late = root is not None and root.generation > 0
        young = self.age(score.samples) < PROTECTED_GENERATIONS
        return started_late and young and math.isfinite(score.score)

    def ranking(self, current: Sequence[Score]) -> list[Score]:
        """Scores of a generation, best first, by the share of the agents of its age that each is better than.

        Ties, as among agents of one age only, go to the higher score, then to the smaller id; diverged agents are last.
        """
        adjusted = dict(zip((score.id for score in current), self.adjusted(current), strict=True))
        rivals: dict[int, list[float]] = {}
        for past in {**self.history, **{score.id: past_score(score) for score in current}}.values():
            rivals.setdefault(self.age(past.samples), []).append(past.score)

        def key(score: Score) -> tuple[float, float, str]:
            if not math.isfinite(score.score):
                return math.inf, math.inf, score.id
            rival_scores = np.nan_to_num(np.array(rivals[self.age(score.samples)]), nan=-math.inf)
            score_value = adjusted[score.id]
            share = float(np.mean((rival_scores < score_value) + 0.5 * (rival_scores == score_value)))
            return -share, -score_value, score.id

        return sorted(current, key=key)

    def adjusted(self, scores: Sequence[Score]) -> list[float]:
        """Scores minus `NOVELTY` times the mean correlation of active returns with all agents of a higher score."""
        order = sorted(range(len(scores)), key=lambda i: (-scores[i].score, scores[i].id))
        with_returns = [i for i in order if scores[i].id in self.returns and math.isfinite(scores[i].score)]
        values = [score.score for score in scores]
        if len(with_returns) < 2 or BASE not in self.returns:
            return values
        matrix = correlation_matrix(active_returns([scores[i].id for i in with_returns], self.returns))
        for rank, i in enumerate(with_returns[1:], 1):
            values[i] -= NOVELTY * float(matrix[rank, :rank].mean())
        return values


def active_returns(agents: Sequence[str], returns: Mapping[str, Floats]) -> Floats:
    """Returns [T, M] of agents relative to the base. returns: returns [T] by id, base returns under `BASE`."""
    return np.stack([returns[agent] - returns[BASE] for agent in agents], 1)


def correlation_matrix(active: Floats) -> Floats:
    """Pearson correlations [M, M] of active returns [T, M].

    1 with an agent whose active returns are constant: one that holds the base adds nothing new.
    """
    deviations = active - active.mean(0)
    spread = deviations.std(0)
    constant = spread <= RISK_EPSILON
    unit = np.where(constant, 0.0, deviations / np.where(constant, 1.0, spread))
    matrix = np.clip(unit.T @ unit / len(active), -1.0, 1.0)
    matrix[constant, :] = matrix[:, constant] = 1.0
    np.fill_diagonal(matrix, 1.0)
    return matrix


def mean_correlation(active: Floats) -> float | None:
    """Mean correlation of pairs of the M columns of active returns [T, M]; None for a single one."""
    count = active.shape[1]
    if count < 2:
        return None
    return float(correlation_matrix(active)[np.triu_indices(count, 1)].mean())

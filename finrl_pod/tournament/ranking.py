"""Ranking of pods for the next generation: at equal age, and with a lower rank for copies of existing agents.

An agent that started late has had fewer samples than the others. It is therefore ranked among all agents of its age:
those of this generation, and those of earlier generations when they were as old. A new agent is not replaced before it
has had `PROTECTED_GENERATIONS` generations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finrl_pod.errors import RunError
from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.active_returns import BASE, active_returns, correlation_matrix
from finrl_pod.tournament.leaderboard import root_id
from finrl_pod.types import Floats, Score

PROTECTED_GENERATIONS = 2  # that a pod with new weights gets before it may be replaced
NOVELTY = 0.1  # subtracted from a score for a correlation of 1 with all better agents


@dataclass(frozen=True)
class PastScore:
    """Record of an agent's score, kept for every agent of a tournament. samples: its age; score: NaN if it diverged."""

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
    """Data that the scores of a generation are compared with.

    history: of all agents of the cohort by id. returns: on validation by id, [T] each, the base's under `BASE`; agents
    without returns are not penalised.
    """

    config: TournamentConfig
    history: Mapping[str, PastScore]
    returns: Mapping[str, Floats]

    def age(self, samples: int) -> int:
        """Age in generations."""
        return round(samples / self.config.samples_per_generation)

    def is_protected(self, score: Score) -> bool:
        """Whether an agent of new weights, made after the first generation, is too young to be replaced."""
        root = self.history.get(root_id(score))
        started_late = root is not None and root.generation > 0
        young = self.age(score.samples) < PROTECTED_GENERATIONS
        return started_late and young and math.isfinite(score.score)

    def ranked(self, current: Sequence[Score]) -> list[Score]:
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
            others = np.nan_to_num(np.array(rivals[self.age(score.samples)]), nan=-math.inf)
            own = adjusted[score.id]
            share = float(np.mean((others < own) + 0.5 * (others == own)))
            return -share, -own, score.id

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

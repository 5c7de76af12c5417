"""The best agents so far, by validation score, with their lineage; and the champion chosen from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from finrl_pod.errors import RunError
from finrl_pod.settings.run import TournamentConfig
from finrl_pod.types import Score


@dataclass(frozen=True)
class Leaderboard:
    """At most `size` scores, best first; ties go to fewer samples, then to the smaller id. Immutable."""

    size: int
    scores: tuple[Score, ...] = ()

    def insert(self, entries: Iterable[Score]) -> Leaderboard:
        """The updater: entries enter by score and the worst fall off. A score that is not a number never enters."""
        pool = [*self.scores, *(entry for entry in entries if math.isfinite(entry.score))]
        return Leaderboard(self.size, tuple(sorted(pool, key=_rank)[: self.size]))

    @property
    def best(self) -> Score | None:
        """The first, or None while empty."""
        return self.scores[0] if self.scores else None

    def of_slots(self, slots: Collection[int]) -> Leaderboard:
        """The part of it that came out of these slots."""
        return Leaderboard(self.size, tuple(score for score in self.scores if score.slot in slots))

    def plain(self) -> list[dict[str, Any]]:
        """As JSON knows it."""
        return [asdict(score) for score in self.scores]

    @classmethod
    def from_plain(cls, size: int, rows: Iterable[Mapping[str, Any]]) -> Leaderboard:
        """Back from `plain`. Raises RunError for rows that are no scores."""
        return cls(size, tuple(score_from_plain(row) for row in rows))


def score_from_plain(row: Mapping[str, Any]) -> Score:
    """A score as JSON holds it: null stands for a number that is none. Raises RunError for anything else."""
    try:
        metrics = {name: math.nan if value is None else float(value) for name, value in row["metrics"].items()}
        number = math.nan if row["score"] is None else float(row["score"])
        return Score(**{**row, "score": number, "metrics": metrics})
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError(
            "the saved leaderboard is damaged: a row is no score; restore state.json or start anew"
        ) from None


def _rank(entry: Score) -> tuple[float, int, str]:
    return (-entry.score, entry.samples, entry.id)


def ancestry(agent: str, parents: Mapping[str, str | None]) -> list[str]:
    """The parent first, then its parent, and so on. parents: id -> parent's id, over all agents ever made."""
    line: list[str] = []
    current = parents.get(agent)
    while current is not None:
        line.append(current)
        current = parents.get(current)
    return line


@dataclass(frozen=True)
class ChampionMembers:
    """ids: of the members, best first. shares: of the ensemble's weights, or of its votes, summing to one."""

    ids: tuple[str, ...]
    shares: tuple[float, ...]
    rule: Literal["mean", "vote"] = "mean"


def choose(board: Leaderboard, config: TournamentConfig) -> ChampionMembers:
    """The first `config.champion` of the leaderboard: equal shares ("mean"), by validation Sharpe ("sharpe"), or
    a vote each ("vote")."""
    members: Sequence[Score] = board.scores[: config.champion]
    raw = [max(score.score, 0.0) if config.ensemble == "sharpe" else 1.0 for score in members]
    rule: Literal["mean", "vote"] = "vote" if config.ensemble == "vote" else "mean"
    total = sum(raw)
    shares = [x / total for x in raw] if total > 0 else [1 / len(members)] * len(members)
    return ChampionMembers(tuple(score.id for score in members), tuple(shares), rule)

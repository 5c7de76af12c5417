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
        """Leaderboard with these entries added and the worst dropped; NaN scores are never added."""
        pool = [*self.scores, *(entry for entry in entries if math.isfinite(entry.score))]
        return Leaderboard(self.size, tuple(sorted(pool, key=_rank)[: self.size]))

    @property
    def best(self) -> Score | None:
        """Best score, None while empty."""
        return self.scores[0] if self.scores else None

    def of_slots(self, slots: Collection[int]) -> Leaderboard:
        """Entries of these slots."""
        return Leaderboard(self.size, tuple(score for score in self.scores if score.slot in slots))

    def plain(self) -> list[dict[str, Any]]:
        """Entries as JSON values."""
        return [asdict(score) for score in self.scores]

    @classmethod
    def from_plain(cls, size: int, rows: Iterable[Mapping[str, Any]]) -> Leaderboard:
        """Leaderboard from the rows of `plain`. Raises RunError for invalid rows."""
        return cls(size, tuple(score_from_plain(row) for row in rows))


def score_from_plain(row: Mapping[str, Any]) -> Score:
    """Score from its JSON values, null for NaN. Raises RunError for an invalid row."""
    try:
        metrics = {name: math.nan if value is None else float(value) for name, value in row["metrics"].items()}
        number = math.nan if row["score"] is None else float(row["score"])
        return Score(**{**row, "score": number, "metrics": metrics})
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError("the saved leaderboard has an invalid row; restore state.json or start a new run") from None


def _rank(entry: Score) -> tuple[float, int, str]:
    return (-entry.score, entry.samples, entry.id)


def ancestry(agent: str, parents: Mapping[str, str | None]) -> list[str]:
    """Ids of the ancestors, parent first. parents: id -> parent's id, of all agents of the run."""
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
    """Champion members: the first `config.champion` of the leaderboard, with their shares.

    Shares are equal ("mean"), proportional to the validation Sharpe ratio ("sharpe"), or one vote each ("vote").
    """
    members: Sequence[Score] = board.scores[: config.champion]
    raw = [max(score.score, 0.0) if config.ensemble == "sharpe" else 1.0 for score in members]
    rule: Literal["mean", "vote"] = "vote" if config.ensemble == "vote" else "mean"
    total = sum(raw)
    shares = [x / total for x in raw] if total > 0 else [1 / len(members)] * len(members)
    return ChampionMembers(tuple(score.id for score in members), tuple(shares), rule)

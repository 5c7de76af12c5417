"""The best agents so far, by validation score, with their lineage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.settings.run import MAX_ROOT_SHARE, TournamentConfig
from finrl_pod.types import Score

ROUNDING = 1e-9  # 0.29 * 100 = 28.999... counts as 29


@dataclass(frozen=True)
class Leaderboard:
    """At most `size` scores, best first; ties go to fewer samples, then to the smaller id. Immutable.

    max_root_share: share of the entries (at least one) up to which descendants of one root are kept whatever the others
    score. Beyond it they only fill places that no other entry takes.
    """

    size: int
    scores: tuple[Score, ...] = ()
    max_root_share: float = 1.0

    def insert(self, entries: Iterable[Score]) -> Leaderboard:
        """Leaderboard with these entries added and the worst dropped, those of an over-represented root first.

        NaN scores are never added, nor is an agent that is there already: its id is made of slot and assignment. The
        result does not depend on the order of insertion.
        """
        present = {entry.id for entry in self.scores}
        new = [entry for entry in entries if math.isfinite(entry.score) and entry.id not in present]
        pool = sorted([*self.scores, *new], key=_rank)
        limit = max(1, math.floor(self.max_root_share * self.size + ROUNDING))
        counts: Counter[str] = Counter()
        within: list[Score] = []
        beyond: list[Score] = []
        for entry in pool:
            counts[root_id(entry)] += 1
            (within if counts[root_id(entry)] <= limit else beyond).append(entry)
        kept = (within + beyond)[: self.size]
        return replace(self, scores=tuple(sorted(kept, key=_rank)))

    @property
    def best(self) -> Score | None:
        """Best score, None while empty."""
        return self.scores[0] if self.scores else None

    def of_slots(self, slots: Collection[int]) -> Leaderboard:
        """Entries of these slots."""
        return replace(self, scores=tuple(score for score in self.scores if score.slot in slots))

    def to_dict(self) -> list[dict[str, Any]]:
        """Entries as JSON values."""
        return [asdict(score) for score in self.scores]

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None, config: TournamentConfig) -> Leaderboard:
        """Leaderboard of a run's saved state, empty for None. Raises RunError for invalid rows."""
        scores = tuple(score_from_dict(row) for row in (state["leaderboard"] if state else ()))
        return cls(config.leaderboard, scores, MAX_ROOT_SHARE)


def score_from_dict(row: Mapping[str, Any]) -> Score:
    """Score from its JSON values, null for NaN. Raises RunError for an invalid row."""
    try:
        metrics = {name: math.nan if value is None else float(value) for name, value in row["metrics"].items()}
        number = math.nan if row["score"] is None else float(row["score"])
        return Score(**{**row, "root": row["root"], "score": number, "metrics": metrics})
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError("the saved leaderboard has an invalid row; restore state.json or start a new run") from None


def _rank(entry: Score) -> tuple[float, int, str]:
    return (-entry.score, entry.samples, entry.id)


def root_id(entry: Score) -> str:
    """Id of the first ancestor of an agent, its own if it started from new weights."""
    return entry.root or entry.id


def root_of(agent: str, parents: Mapping[str, str | None]) -> str:
    """Id of the first ancestor of an agent, its own if it has no parent. parents: as for `ancestry`."""
    return [agent, *ancestry(agent, parents)][-1]


def ancestry(agent: str, parents: Mapping[str, str | None]) -> list[str]:
    """Ids of the ancestors, parent first. parents: id -> parent's id, of all agents of the run."""
    line: list[str] = []
    current = parents.get(agent)
    while current is not None:
        line.append(current)
        current = parents.get(current)
    return line

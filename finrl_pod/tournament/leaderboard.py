"""The best agents so far, by validation score, with their lineage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import RunError
from finrl_pod.settings.run import MAX_ROOT_SHARE

if TYPE_CHECKING:
    from finrl_pod.types import Score  # loads torch

ROUNDING = 1e-9  # 0.29 * 100 = 28.999... counts as 29


def root_limit(size: int, share: float = MAX_ROOT_SHARE) -> int:
    """Entries of a leaderboard of `size` that descend from one root and are kept whatever the others score."""
    return max(1, math.floor(share * size + ROUNDING))


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
        """Leaderboard with these entries added and the worst dropped, descendants of an over-represented root first.

        NaN scores are never added, nor is an agent that is there already: its id is made of slot and assignment. The
        result does not depend on the order of insertion.
        """
        present = {entry.id for entry in self.scores}
        new_entries = [entry for entry in entries if math.isfinite(entry.score) and entry.id not in present]
        pool = sorted([*self.scores, *new_entries], key=_rank)
        limit = root_limit(self.size, self.max_root_share)
        counts: Counter[str] = Counter()
        within_limit: list[Score] = []
        beyond_limit: list[Score] = []
        for entry in pool:
            counts[root_id(entry)] += 1
            (within_limit if counts[root_id(entry)] <= limit else beyond_limit).append(entry)
        best_entries = (within_limit + beyond_limit)[: self.size]
        return replace(self, scores=tuple(sorted(best_entries, key=_rank)))

    @property
    def best(self) -> Score | None:
        return self.scores[0] if self.scores else None


def score_from_dict(row: Mapping[str, Any]) -> Score:
    """Score from its JSON values, null for NaN. Raises RunError for an invalid row."""
    from finrl_pod.types import Score

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
    """Id of the first ancestor of an agent, its own if it has no parent. parents: id -> id of the parent."""
    return [agent, *ancestry(agent, parents)][-1]


def ancestry(agent: str, parents: Mapping[str, str | None]) -> list[str]:
    """Ids of the ancestors, parent first. parents: id -> id of the parent, for all agents of the run."""
    line: list[str] = []
    current = parents.get(agent)
    while current is not None:
        line.append(current)
        current = parents.get(current)
    return line

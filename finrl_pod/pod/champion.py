"""The champion: the best few of the leaderboard, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finrl_pod.config import TournamentConfig
from finrl_pod.pod.leaderboard import Leaderboard
from finrl_pod.types import Score


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

"""Selection and weights of the champion's members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.selection import ChampionMembers, choose
from finrl_pod.types import Score
from tests.tournament.sample_scores import score, score_lists


def board(*values: float) -> Leaderboard:
    return Leaderboard(16).insert([score(f"g00s{i:02d}", value) for i, value in enumerate(values)])


def best_of(leaderboard: Leaderboard, config: TournamentConfig) -> ChampionMembers:
    """The best entries; their scores alone decide, not their returns."""
    one_root = Leaderboard(16, tuple(replace(entry, root="r") for entry in leaderboard.scores))
    return choose(one_root, replace(config, selection="best"), {entry.id: np.zeros(4) for entry in one_root.scores})


def test_best_agents_have_equal_shares() -> None:
    members = best_of(board(0.1, 0.4, 0.3, 0.2), TournamentConfig(champion=3))
    assert members.ids == ("g00s01", "g00s02", "g00s03")
    assert members.ensemble_weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_shares_are_proportional_to_validation_sharpe() -> None:
    members = best_of(board(1.0, 3.0), TournamentConfig(champion=2, ensemble="sharpe"))
    assert members.ids == ("g00s01", "g00s00")
    assert members.ensemble_weights == pytest.approx((0.75, 0.25))


def test_negative_score_has_no_share() -> None:
    members = best_of(board(2.0, -1.0), TournamentConfig(champion=2, ensemble="sharpe"))
    assert members.ensemble_weights == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize("values", [(-1.0, -2.0), (0.0, 0.0)])
def test_shares_are_equal_if_no_sharpe_ratio_is_positive(values: tuple[float, ...]) -> None:
    assert best_of(board(*values), TournamentConfig(champion=2, ensemble="sharpe")).ensemble_weights == (0.5, 0.5)


def test_fewer_agents_than_champion_members() -> None:
    assert best_of(board(0.1), TournamentConfig(champion=4)).ensemble_weights == (1.0,)


@given(score_lists(), st.integers(1, 5), st.sampled_from(["mean", "sharpe"]))
def test_shares_sum_to_one_in_leaderboard_order(entries: list[Score], count: int, ensemble: str) -> None:
    leaderboard = Leaderboard(16).insert(entries)
    if not leaderboard.scores:
        return
    members = best_of(leaderboard, TournamentConfig(champion=count, ensemble=ensemble))  # type: ignore[arg-type]
    assert members.ids == tuple(entry.id for entry in leaderboard.scores)[:count]
    assert np.isclose(sum(members.ensemble_weights), 1)
    assert min(members.ensemble_weights) >= 0
    assert list(members.ensemble_weights) == sorted(members.ensemble_weights, reverse=True)

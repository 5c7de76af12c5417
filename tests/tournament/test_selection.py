"""Selection of the champion's members against a plain version, its folds, and the correlations that are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.evaluation.champions import load_champion
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.ranking import BASE, correlation_matrix, mean_correlation
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import INNER_FOLDS, champion_of, choose, sharpe_ratios
from finrl_pod.types import Floats
from tests.tournament.sample_scores import score
from tests.tournament.small_tournament import DATA, VALIDATION, small_config, small_market, tournament


def ratio(returns: Floats) -> float:
    return float(returns.mean() / returns.std(ddof=1))


def table(agents: int, bars: int = 90, seed: int = 0, common: float = 0.5) -> Floats:
    """Returns [T, M] of agents that share a part of their risk, with Sharpe ratios that differ."""
    rng = np.random.default_rng(seed)
    own, shared = rng.normal(0, 0.01, (bars, agents)), rng.normal(0, 0.01, (bars, 1))
    return common * shared + own + np.linspace(0.002, 0.0, agents)


def board_of(returns: Floats, roots: list[str] | None = None) -> tuple[Leaderboard, dict[str, Floats]]:
    """A leaderboard with these validation returns, best first, and the returns by id."""
    ids = [f"g00s{i:02d}" for i in range(returns.shape[1])]
    roots = roots or ids
    entries = [score(name, ratio(returns[:, i]), slot=i, root=roots[i]) for i, name in enumerate(ids)]
    by_id = {name: returns[:, i] for i, name in enumerate(ids)}
    return Leaderboard(16).insert(entries), {**by_id, BASE: returns.mean(1)}


def greedy(returns: dict[str, Floats], ranked: list[str], size: int) -> dict[str, int]:
    """Greedy selection with replacement, written with lists of ids and one ensemble at a time."""
    bag = ranked[:size]
    while len(bag) < size + 64:
        best = max(ranked, key=lambda new: ratio(np.mean([returns[name] for name in [*bag, new]], 0)))
        before, after = (ratio(np.mean([returns[name] for name in names], 0)) for names in (bag, [*bag, best]))
        if after <= before + 1e-9:
            break
        bag = [*bag, best]
    return {name: bag.count(name) for name in ranked if name in bag}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1, 3])
def test_greedy_selection_equals_a_plain_version(seed: int, size: int) -> None:
    board, returns = board_of(table(7, seed=seed))
    members = choose(board, TournamentConfig(selection="greedy", champion=size), returns)
    expected = greedy(returns, [entry.id for entry in board.scores], size)
    if len(expected) == 1:
        assert len(set(members.roots)) == 2
        return
    total = sum(expected.values())
    assert dict(zip(members.ids, members.ensemble_weights, strict=True)) == pytest.approx(
        {name: count / total for name, count in expected.items()}
    )
    assert members.procedure == "greedy"


def test_greedy_selection_takes_a_worse_agent_that_diversifies_over_better_copies() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.normal(0.001, 0.01, 500), rng.normal(0.0008, 0.01, 500)
    copies = np.stack([one + rng.normal(0, 1e-4, 500) for _ in range(4)], 1)
    board, returns = board_of(np.column_stack([copies, other - other.mean() + 0.7 * one.mean()]))
    members = choose(board, TournamentConfig(selection="greedy", champion=2), returns)
    assert "g00s04" in members.ids
    best = choose(board, TournamentConfig(selection="best", champion=2), returns)
    assert "g00s04" not in best.ids
    assert members.mean_correlation is not None
    assert best.mean_correlation is not None

    def ensemble(chosen: Any) -> float:
        return ratio(np.stack([returns[name] for name in chosen.ids], 1) @ np.array(chosen.ensemble_weights))

    assert ensemble(members) > ensemble(best)


@pytest.mark.parametrize("selection", ["greedy", "best", "all", "cross_validated"])
def test_members_have_two_roots_where_the_leaderboard_has(selection: Any) -> None:
    returns = table(5, seed=1)
    returns[:, 4] -= 0.01  # far behind
    board, by_id = board_of(returns, ["a", "a", "a", "a", "b"])
    for size in (2, 4):
        members = choose(board, TournamentConfig(selection=selection, champion=size), by_id)
        assert set(members.roots) == {"a", "b"}
        assert len(members.roots) == len(members.ids)
    assert choose(board, TournamentConfig(selection="best", champion=1), by_id).roots == ("a",)
    alone, by_id = board_of(returns, ["a"] * 5)
    assert set(choose(alone, TournamentConfig(selection=selection, champion=2), by_id).roots) == {"a"}


def test_all_entries_have_equal_shares() -> None:
    board, returns = board_of(table(5))
    members = choose(board, TournamentConfig(selection="all", champion=2), returns)
    assert members.ensemble_weights == pytest.approx([0.2] * 5)
    assert members.ids == tuple(entry.id for entry in board.scores)


def test_shares_by_sharpe_ratio_multiply_the_counts() -> None:
    board, returns = board_of(table(6, seed=2))
    plain = choose(board, TournamentConfig(selection="greedy", champion=2), returns)
    weighted = choose(board, TournamentConfig(selection="greedy", champion=2, ensemble="sharpe"), returns)
    scores = {entry.id: max(entry.score, 0.0) for entry in board.scores}
    raw = [share * scores[name] for name, share in zip(plain.ids, plain.ensemble_weights, strict=True)]
    assert weighted.ensemble_weights == pytest.approx([x / sum(raw) for x in raw])


@pytest.mark.parametrize(("seed", "agents"), [(0, 4), (1, 8), (2, 12), (3, 6)])
def test_the_procedure_with_the_best_mean_over_the_folds_selects(seed: int, agents: int) -> None:
    returns = table(agents, bars=120, seed=seed)
    board, by_id = board_of(returns)
    config = TournamentConfig(champion=2)
    means: dict[str, list[float]] = {}
    for block in np.split(np.arange(120), INNER_FOLDS):
        rest = np.setdiff1d(np.arange(120), block)
        inner, inner_returns = board_of(returns[rest])
        for name in ("all", "best", "greedy"):
            members = choose(inner, TournamentConfig(champion=2, selection=name), inner_returns)  # type: ignore[arg-type]
            columns = [int(member[-2:]) for member in members.ids]
            means.setdefault(name, []).append(ratio(returns[block][:, columns] @ np.array(members.ensemble_weights)))
    expected = max(means, key=lambda name: float(np.mean(means[name])))
    members = choose(board, config, by_id)
    assert members.procedure == expected
    assert members.ids == choose(board, TournamentConfig(champion=2, selection=expected), by_id).ids  # type: ignore[arg-type]


def test_noise_alone_selects_all_or_few_but_a_clear_best_agent_is_kept() -> None:
    """One agent with an edge among eleven without: the folds choose a procedure that keeps it in the champion."""
    rng = np.random.default_rng(5)
    returns = rng.normal(0, 0.01, (750, 12))
    returns[:, 0] += 0.002
    board, by_id = board_of(returns)
    members = choose(board, TournamentConfig(champion=2), by_id)
    assert members.procedure in ("greedy", "best")
    assert max(zip(members.ensemble_weights, members.ids, strict=True))[1] == "g00s00"


def test_mean_correlation_is_that_of_active_returns() -> None:
    returns = table(4, seed=4)
    board, by_id = board_of(returns)
    members = choose(board, TournamentConfig(selection="all"), by_id)
    active = returns - by_id[BASE][:, None]
    expected = np.corrcoef(active.T)[np.triu_indices(4, 1)].mean()
    assert members.mean_correlation == pytest.approx(expected)
    assert mean_correlation(active[:, :1]) is None


@given(st.integers(2, 5), st.integers(0, 100))
def test_correlations_equal_those_of_numpy(count: int, seed: int) -> None:
    active = np.random.default_rng(seed).normal(size=(30, count))
    np.testing.assert_allclose(correlation_matrix(active), np.corrcoef(active.T), atol=1e-12)
    held_base = np.column_stack([active, np.zeros(30)])
    assert (correlation_matrix(held_base)[-1] == 1).all()


def test_sharpe_ratio_of_constant_returns_is_zero() -> None:
    assert sharpe_ratios(np.full((5, 2), 0.01)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("selection", ["best", "cross_validated"])
def test_missing_returns_are_named(selection: str) -> None:
    board, returns = board_of(table(3))
    del returns["g00s01"]
    with pytest.raises(RunError, match="the validation returns of agent g00s01 are missing"):
        choose(board, TournamentConfig(champion=2, selection=selection), returns)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_saves_what_its_champion_is_selected_by(tmp_path: Path) -> None:
    config = small_config(pods=4, leaderboard=6)
    outcome = tournament(config, tmp_path / "run").run()
    run = RunDirectory.open(tmp_path / "run")
    returns = run.validation_returns({0, 1, 2})
    first, last = VALIDATION
    for entry in outcome.leaderboard.scores:
        assert returns[entry.id].shape == (last - first,)
        assert ratio(returns[entry.id]) * bars_per_year(small_market().times) ** 0.5 == pytest.approx(
            entry.score, rel=1e-9
        )
    close, tradable = (x[first : last + 1].numpy() for x in (small_market().close, small_market().tradable))
    for t in (0, last - first - 1):
        assert returns[BASE][t] == pytest.approx((close[t + 1] / close[t] - 1)[tradable[t]].mean())
    members = champion_of(run, config)
    assert members == champion_of(RunDirectory.open(tmp_path / "run"), config)
    assert set(members.roots) <= {f"g00s{slot:02d}" for slot in range(4)}
    assert len(set(members.roots)) >= 2
    assert load_champion(run, members).ensemble_weights == pytest.approx(members.ensemble_weights)
    rows = json.loads((tmp_path / "run" / "state.json").read_text())["leaderboard"]
    assert {row["id"]: row["root"] for row in rows} == {entry.id: entry.root for entry in outcome.leaderboard.scores}


def test_a_run_without_an_agent_has_no_champion(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", small_config(), DATA)
    with pytest.raises(InputError, match="has no agent on its leaderboard yet"):
        champion_of(run, small_config())

"""Budgets of a run, successive halving, and hyperparameters proposed by TPE."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.settings.run import PPOConfig, TournamentConfig
from finrl_pod.tournament.assignment import make_groups
from finrl_pod.tournament.budget import Budget
from finrl_pod.tournament.hyperparameters import configured
from finrl_pod.tournament.ranking import Comparison, PastScore
from finrl_pod.tournament.run_state import RunState, initial_state
from finrl_pod.tournament.tpe import propose
from finrl_pod.types import Score
from tests.tournament.small_tournament import SAMPLES, small_config, tournament


def state(best: list[float]) -> RunState:
    """A state whose generations have these scores."""
    history = {f"g{i:02d}s00": PastScore(0, i, 10 * (i + 1), value) for i, value in enumerate(best)}
    empty = initial_state(TournamentConfig(), make_groups(small_config()))
    return RunState(len(best) - 1, empty.leaderboard, (), {}, 10 * len(best), 0.0, history, empty.groups)


@pytest.mark.parametrize(
    ("best", "spent"),
    [([1.0, 2.0], False), ([1.0, 2.0, 2.0], False), ([1.0, 2.0, 1.0, 2.0], True), ([1.0, 2.0, 1.0, 2.1], False)],
)
def test_plateau(best: list[float], spent: bool) -> None:
    assert Budget(TournamentConfig(plateau=2), lambda: 0.0).is_spent(state(best)) is spent


def test_samples_and_seconds() -> None:
    assert not Budget(TournamentConfig(total_samples=31), lambda: 0.0).is_spent(state([1.0, 1.0, 1.0]))
    assert Budget(TournamentConfig(total_samples=30), lambda: 0.0).is_spent(state([1.0, 1.0, 1.0]))
    now = 100.0
    budget = Budget(TournamentConfig(seconds=60.0), lambda: now, spent=10.0)
    assert budget.share(2) == 25.0
    now = 150.0
    assert budget.is_spent(state([1.0]))
    assert budget.share(1) == 0.0
    assert math.isinf(Budget(TournamentConfig(), lambda: now).share(3))


def test_a_run_stops_at_its_samples(tmp_path: Path) -> None:
    config = small_config(generations=5, total_samples=2 * 2 * 2 * SAMPLES)
    tournament(config, tmp_path / "run").run()
    assert json.loads((tmp_path / "run" / "state.json").read_text())["generation"] == 1


def test_successive_halving_keeps_the_best_of_an_age() -> None:
    config = TournamentConfig(halving=3, samples_per_generation=10)
    history = {f"{i}": PastScore(i, 2, 30, float(i)) for i in range(6)}
    comparison = Comparison(config, history, {})
    halved = [comparison.is_halved(Score(f"{i}", None, 2, i, 30, float(i), {})) for i in range(6)]
    assert halved == [True, True, True, True, False, False]
    assert not comparison.is_halved(Score("a", None, 1, 0, 20, -9.0, {})), "no rung at an age of two generations"
    assert not Comparison(TournamentConfig(), history, {}).is_halved(Score("0", None, 2, 0, 30, 0.0, {}))


def test_tpe_proposes_where_good_agents_are() -> None:
    """The score falls with the distance of the learning rate's logarithm from 2.5 times the configured one."""
    config, rng = PPOConfig(learning_rate=3e-3), np.random.default_rng(0)
    best = math.log(3e-3 * 2.5)
    trials = []
    for _ in range(60):
        values = configured(config) | {"learning_rate": float(np.exp(math.log(3e-3) + rng.uniform(-1.0986, 1.0986)))}
        trials.append((values, -abs(math.log(values["learning_rate"]) - best)))
    proposed = [propose(config, "full", trials, seed)["learning_rate"] for seed in range(20)]
    assert propose(config, "full", trials, 3) == propose(config, "full", trials, 3)
    assert abs(np.median(np.log(proposed)) - best) < 0.3, "random ones have a median distance of 0.9"
    assert all(1e-3 <= value <= 9e-3 * (1 + 1e-9) for value in proposed)
    assert propose(config, "off", trials, 0) == {}


def test_tpe_in_a_tournament(tmp_path: Path) -> None:
    config = small_config(sampler="tpe", reinit_fraction=0.5, exploit_fraction=0.0, protected_generations=0)
    for name in ("one", "two"):
        tournament(config, tmp_path / name).run()
    one, two = (json.loads((tmp_path / name / "state.json").read_text()) for name in ("one", "two"))
    assert one["leaderboard"] == two["leaderboard"]
    assert sum(parent is None for parent in one["parents"].values()) > 2

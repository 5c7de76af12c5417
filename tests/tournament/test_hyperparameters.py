"""Draws stay near the config and inside their bounds; perturbations move by their factor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from finrl_pod.tournament.generator import BOUNDS, RATE_FACTOR, configured, perturb, sample_hyperparameters, searched

AGENT = PPOConfig()
agents = st.builds(
    PPOConfig,
    learning_rate=st.floats(1e-5, 1e-1),
    gamma=st.floats(0, 0.999),
    gae_lambda=st.floats(0, 0.999),
    clip_range=st.floats(0.05, 0.5),
)
seeds = st.integers(0, 2**32)


def horizon(share: float) -> float:
    return 1 / (1 - share)


@given(agents, seeds)
def test_draws_stay_within_their_range_and_bounds(agent: PPOConfig, seed: int) -> None:
    values = sample_hyperparameters(agent, np.random.default_rng(seed))
    assert set(values) == set(searched(agent))
    for name in searched(agent):
        low, high = BOUNDS[name]
        assert low <= values[name] <= high
    centre, slack = configured(agent), 1 + 1e-9
    assert values["learning_rate"] / centre["learning_rate"] <= RATE_FACTOR * slack
    assert centre["learning_rate"] / values["learning_rate"] <= RATE_FACTOR * slack
    assert (
        max(values["clip_range"] / centre["clip_range"], centre["clip_range"] / values["clip_range"])
        <= RATE_FACTOR**0.37 * slack
    )
    for name in ("gamma", "gae_lambda"):
        ratio = horizon(values[name]) / horizon(centre[name])
        assert ratio <= RATE_FACTOR * slack
        # A horizon is one step at least, wherever the draw would have it.
        assert ratio >= 1 / RATE_FACTOR / slack or values[name] == 0.0


def test_draws_spread_to_both_sides_over_the_whole_range() -> None:
    stream = np.random.default_rng(0)
    rates = (
        np.array([sample_hyperparameters(AGENT, stream)["learning_rate"] for _ in range(2000)]) / AGENT.learning_rate
    )
    moves = np.log(rates) / math.log(RATE_FACTOR)  # uniform on [-1, 1]
    assert abs(moves.mean()) < 0.06
    assert abs(moves.std() - 1 / math.sqrt(3)) < 0.03
    assert moves.min() < -0.98
    assert moves.max() > 0.98


@given(agents, seeds, st.floats(1.0, 3.0))
def test_a_perturbation_moves_every_value_by_its_factor(agent: PPOConfig, seed: int, factor: float) -> None:
    before = configured(agent)
    after = perturb(before, factor, 0.0, agent, np.random.default_rng(seed))
    for name in searched(agent):
        low, high = BOUNDS[name]
        assert low <= after[name] <= high
        if after[name] in (low, high):
            continue
        of = horizon if name in ("gamma", "gae_lambda") else float
        ratio = of(after[name]) / of(before[name])
        assert ratio == pytest.approx(factor, rel=1e-6) or ratio == pytest.approx(1 / factor, rel=1e-6)


def test_perturbation_directions_and_resampling_have_their_probabilities() -> None:
    stream = np.random.default_rng(1)
    before = configured(AGENT)
    ratios = [perturb(before, 1.25, 0.2, AGENT, stream)["clip_range"] / before["clip_range"] for _ in range(2000)]
    up = sum(math.isclose(ratio, 1.25) for ratio in ratios)
    down = sum(math.isclose(ratio, 0.8) for ratio in ratios)
    # Binomial: 2000 x 0.4 with a deviation of 22, 2000 x 0.2 with one of 18; four deviations each.
    assert abs(up - 800) < 88
    assert abs(down - 800) < 88
    assert abs(2000 - up - down - 400) < 72


def test_resample_always_is_a_fresh_draw() -> None:
    one = perturb(configured(AGENT), 1.25, 1.0, AGENT, np.random.default_rng(4))
    other = perturb(dict.fromkeys(searched(AGENT), 0.3), 2.0, 1.0, AGENT, np.random.default_rng(4))
    assert one == other == sample_hyperparameters(AGENT, np.random.default_rng(4))


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_a_horizon_without_end_is_drawn_as_the_longest_that_there_is(name: str) -> None:
    """A factor on the value itself would leave horizons of one or two bars."""
    agent = A2CConfig(**{name: 1.0})
    drawn = [sample_hyperparameters(agent, np.random.default_rng(seed))[name] for seed in range(200)]
    assert min(drawn) >= 1 - RATE_FACTOR * (1 - BOUNDS[name][1]) - 1e-12
    assert perturb({**configured(agent)}, 1.2, 0.0, agent, np.random.default_rng(0))[name] > 0.998

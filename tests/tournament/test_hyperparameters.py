"""Sampling and perturbation of hyperparameters: ranges, bounds and probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from finrl_pod.tournament.hyperparameters import (
    BOUNDS,
    FROM_ZERO,
    RATE_FACTOR,
    config_values,
    perturb,
    sample_hyperparameters,
    searched_names,
)

AGENT = PPOConfig()
agents = st.builds(
    PPOConfig,
    learning_rate=st.floats(1e-5, 1e-1),
    gamma=st.floats(0, 0.999),
    gae_lambda=st.floats(0, 0.999),
    clip_range=st.floats(0.05, 0.5),
)
seeds = st.integers(0, 2**32)


def horizon(value: float) -> float:
    return 1 / (1 - value)


@given(agents, seeds)
def test_samples_stay_within_their_range_and_bounds(agent: PPOConfig, seed: int) -> None:
    values = sample_hyperparameters(agent, np.random.default_rng(seed))
    assert set(values) == set(searched_names(agent))
    for name in searched_names(agent):
        low, high = BOUNDS[name]
        assert low <= values[name] <= high
    centre, tolerance = config_values(agent), 1 + 1e-9
    assert values["learning_rate"] / centre["learning_rate"] <= RATE_FACTOR * tolerance
    assert centre["learning_rate"] / values["learning_rate"] <= RATE_FACTOR * tolerance
    assert (
        max(values["clip_range"] / centre["clip_range"], centre["clip_range"] / values["clip_range"])
        <= RATE_FACTOR**0.37 * tolerance
    )
    for name in ("gamma", "gae_lambda"):
        ratio = horizon(values[name]) / horizon(centre[name])
        assert ratio <= RATE_FACTOR * tolerance
        # A horizon is at least one step.
        assert ratio >= 1 / RATE_FACTOR / tolerance or values[name] == 0.0


def test_samples_cover_the_whole_range() -> None:
    rng = np.random.default_rng(0)
    rates = np.array([sample_hyperparameters(AGENT, rng)["learning_rate"] for _ in range(2000)]) / AGENT.learning_rate
    moves = np.log(rates) / math.log(RATE_FACTOR)  # uniform on [-1, 1]
    assert abs(moves.mean()) < 0.06
    assert abs(moves.std() - 1 / math.sqrt(3)) < 0.03
    assert moves.min() < -0.98
    assert moves.max() > 0.98


@given(agents, seeds, st.floats(1.0, 3.0))
def test_perturbation_changes_every_value_by_the_factor(agent: PPOConfig, seed: int, factor: float) -> None:
    original = config_values(agent)
    perturbed = perturb(original, factor, 0.0, agent, np.random.default_rng(seed))
    for name in searched_names(agent):
        low, high = BOUNDS[name]
        assert low <= perturbed[name] <= high
        if perturbed[name] in (low, high):
            continue
        if original[name] == 0.0 and name in FROM_ZERO:
            continue
        transform = horizon if name in ("gamma", "gae_lambda") else float
        ratio = transform(perturbed[name]) / transform(original[name])
        assert ratio == pytest.approx(factor, rel=1e-6) or ratio == pytest.approx(1 / factor, rel=1e-6)


def test_perturbation_and_resampling_probabilities() -> None:
    rng = np.random.default_rng(1)
    original = config_values(AGENT)
    ratios = [perturb(original, 1.25, 0.2, AGENT, rng)["clip_range"] / original["clip_range"] for _ in range(2000)]
    up = sum(math.isclose(ratio, 1.25) for ratio in ratios)
    down = sum(math.isclose(ratio, 0.8) for ratio in ratios)
    # Binomial with means 800 and 400 and standard deviations 22 and 18; the limits are four standard deviations.
    assert abs(up - 800) < 88
    assert abs(down - 800) < 88
    assert abs(2000 - up - down - 400) < 72


def test_resample_probability_one_samples_from_scratch() -> None:
    one = perturb(config_values(AGENT), 1.25, 1.0, AGENT, np.random.default_rng(4))
    other = perturb(dict.fromkeys(searched_names(AGENT), 0.3), 2.0, 1.0, AGENT, np.random.default_rng(4))
    assert one == other == sample_hyperparameters(AGENT, np.random.default_rng(4))


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_infinite_horizon_is_sampled_near_the_longest_finite_one(name: str) -> None:
    """Scaling the value instead of its horizon would give horizons of one or two bars."""
    agent = A2CConfig(**{name: 1.0})
    samples = [sample_hyperparameters(agent, np.random.default_rng(seed))[name] for seed in range(200)]
    assert min(samples) >= 1 - RATE_FACTOR * (1 - BOUNDS[name][1]) - 1e-12
    assert perturb({**config_values(agent)}, 1.2, 0.0, agent, np.random.default_rng(0))[name] > 0.998


def test_an_entropy_coefficient_of_zero_leaves_zero_half_of_the_time_and_comes_back() -> None:
    """Multiplying alone would keep it at 0 for ever."""
    rng = np.random.default_rng(2)
    low, high = FROM_ZERO["entropy_coefficient"]
    moved = [perturb(config_values(AGENT), 1.25, 0.0, AGENT, rng)["entropy_coefficient"] for _ in range(2000)]
    left = np.array([value for value in moved if value > 0])
    assert abs(len(left) - 1000) < 90  # binomial, four standard deviations
    assert low <= left.min() < low * 1.1
    assert high / 1.1 < left.max() <= high
    assert abs(np.log10(left).mean() + 3) < 0.08  # log-uniform from 1e-4 to 1e-2
    least = {**config_values(AGENT), "entropy_coefficient": low}
    assert {perturb(least, 1.25, 0.0, AGENT, rng)["entropy_coefficient"] for _ in range(50)} == {0.0, low * 1.25}
    initial = [sample_hyperparameters(AGENT, np.random.default_rng(i))["entropy_coefficient"] for i in range(100)]
    assert 20 < sum(value == 0 for value in initial) < 80


def test_a_negative_entropy_coefficient_is_not_searched() -> None:
    assert {"entropy_coefficient", "value_coefficient"} < set(searched_names(AGENT))
    assert "entropy_coefficient" not in searched_names(PPOConfig(entropy_coefficient=-0.01))
    assert searched_names(AGENT, "narrow") == ("learning_rate", "gamma", "gae_lambda", "clip_range")
    assert searched_names(AGENT, "off") == ()

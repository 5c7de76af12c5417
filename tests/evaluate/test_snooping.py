"""Reality Check and SPA: their size, their power, and Hansen's over White's where models are bad."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.errors import InputError
from finrl_pod.evaluate.snooping import reality_check, superior_ability
from finrl_pod.evaluate.statistics import binomial_interval

DRAWS = 199


def market(seed: int, bars: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).normal(3e-4, 0.01, bars)


def models(seed: int, base: np.ndarray, count: int, edge: float = 0.0) -> np.ndarray:
    noise = np.random.default_rng(1000 + seed).normal(0, 0.004, (len(base), count))
    return base[:, None] + noise + edge


def test_one_model_is_a_test_of_its_mean() -> None:
    """With one model and long blocks of one bar, SPA is a bootstrap t-test."""
    from scipy import stats

    base = market(1, 1500)
    one = models(1, base, 1, 2e-4)
    expected = stats.ttest_1samp((one[:, 0] - base), 0, alternative="greater").pvalue
    assert superior_ability(base, one, draws=2000) == pytest.approx(expected, abs=0.03)
    assert reality_check(base, one, draws=2000) == pytest.approx(expected, abs=0.03)


def test_a_true_null_is_rejected_at_its_level() -> None:
    rejected = 0
    for seed in range(120):
        base = market(seed)
        rejected += superior_ability(base, models(seed, base, 8), seed=seed, draws=DRAWS) <= 0.1
    low, high = binomial_interval(rejected, 120, 0.99)
    assert low <= 0.1 <= high


def test_a_better_model_is_found_among_others() -> None:
    base = market(2, 1000)
    tried = models(2, base, 10)
    tried[:, 4] += 8e-4
    assert superior_ability(base, tried, draws=DRAWS) <= 0.01
    assert reality_check(base, tried, draws=DRAWS) <= 0.01


def test_bad_models_cost_hansen_less_than_white() -> None:
    base = market(3, 500)
    tried = np.c_[models(3, base, 1, 4e-4), base[:, None] + np.random.default_rng(9).normal(-5e-3, 0.03, (500, 20))]
    assert superior_ability(base, tried, draws=999) < reality_check(base, tried, draws=999)


def test_a_seed_gives_the_same_value() -> None:
    base = market(4)
    tried = models(4, base, 3)
    assert superior_ability(base, tried, seed=3, draws=99) == superior_ability(base, tried, seed=3, draws=99)


@pytest.mark.parametrize(
    ("base", "tried", "words"),
    [
        (np.zeros(10), np.zeros((10, 2)), "needs 20 bars at least, got 10"),
        (np.zeros(30), np.zeros((29, 2)), "over the same bars"),
        (np.zeros(30), np.zeros((30, 0)), "over the same bars"),
        (np.full(30, np.nan), np.zeros((30, 1)), "returns of the benchmark must be finite, at bar 0"),
        (np.arange(30.0), np.c_[np.arange(30.0) ** 2, np.arange(30.0) + 1], "model 1 differs from the benchmark by"),
    ],
)
def test_what_cannot_be_compared_is_refused(base: np.ndarray, tried: np.ndarray, words: str) -> None:
    with pytest.raises(InputError) as caught:
        superior_ability(base, tried)
    assert words in str(caught.value)


def test_no_draws_are_refused() -> None:
    with pytest.raises(InputError, match="at least one draw, got 0"):
        reality_check(market(0), models(0, market(0), 1), draws=0)

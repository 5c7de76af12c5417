"""PBO against worked examples, against a plain loop over the splits, and under a null and an edge."""

from __future__ import annotations

import time
from itertools import combinations
from math import comb

import numpy as np
import pytest

from finrl_pod.errors import InputError
from finrl_pod.evaluate.overfitting import backtest_overfitting

WORST = [[1, 2, 3], [4, 1.1, 0], [2, 2.5, 1.3], [0.2, 3, 5]]
MIXED = [[3, 1, 2], [2.5, 1.1, 0], [1.2, 2.5, 1.3], [2.2, 0.4, 2.7]]


def reference_cscv(returns: np.ndarray, blocks: int) -> tuple[list[float], list[int]]:
    """Logits and selected trials of every split by the Sharpe ratio, as defined by Bailey et al."""
    parts = np.array_split(np.arange(len(returns)), blocks)
    logits, selected = [], []
    for chosen in combinations(range(blocks), blocks // 2):
        in_sample = np.concatenate([parts[b] for b in range(blocks) if b in chosen])
        out_of_sample = np.concatenate([parts[b] for b in range(blocks) if b not in chosen])
        ratio = [returns[rows].mean(0) / returns[rows].std(0, ddof=1) for rows in (in_sample, out_of_sample)]
        best = int(ratio[0].argmax())
        rank = int((ratio[1] <= ratio[1][best]).sum())
        fraction = rank / (returns.shape[1] + 1)
        logits.append(float(np.log(fraction / (1 - fraction))))
        selected.append(best)
    return logits, selected


def test_worked_examples() -> None:
    assert backtest_overfitting(WORST, 4, "mean").pbo == 1.0
    assert backtest_overfitting(MIXED, 4, "mean").pbo == pytest.approx(1 / 3)


@pytest.mark.parametrize(("blocks", "splits"), [(8, 70), (16, 12870)])
def test_number_of_splits(blocks: int, splits: int) -> None:
    result = backtest_overfitting(np.random.default_rng(0).normal(size=(64, 3)), blocks)
    assert len(result.logits) == splits == comb(blocks, blocks // 2)


@pytest.mark.parametrize("blocks", [2, 4, 6, 10])
def test_pbo_equals_a_plain_loop_over_the_splits(blocks: int) -> None:
    returns = np.random.default_rng(blocks).normal(3e-4, 0.01, (30 * blocks, 9))
    result = backtest_overfitting(returns, blocks)
    logits, selected = reference_cscv(returns, blocks)
    assert result.logits == pytest.approx(logits)
    assert result.selected.tolist() == selected
    assert result.pbo == pytest.approx(np.mean([x <= 0 for x in logits]))


def test_pbo_is_about_one_half_under_the_null() -> None:
    values = [backtest_overfitting(np.random.default_rng(i).normal(size=(1000, 100)), 8).pbo for i in range(40)]
    # One matrix has a deviation of 0.16, the mean of 40 has 0.025.
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)
    assert np.std(values) == pytest.approx(0.16, abs=0.06)


def test_a_trial_with_an_edge_has_low_pbo() -> None:
    returns = np.random.default_rng(1).normal(0, 0.01, (1000, 50))
    returns[:, 7] += 0.002
    result = backtest_overfitting(returns, 8)
    assert result.pbo < 0.01
    assert result.loss_probability < 0.05
    assert (result.selected == 7).mean() > 0.95


def test_alternating_trials_are_overfitted() -> None:
    """Each trial is good in one half of the blocks: the best in sample is the worst out of sample."""
    rng = np.random.default_rng(2)
    returns = rng.normal(0, 0.001, (400, 8))
    for n in range(8):
        returns[n * 50 : (n + 1) * 50, n] += 0.01
    assert backtest_overfitting(returns, 8).pbo > 0.9


def test_equal_trials_share_their_rank() -> None:
    trial = np.random.default_rng(3).normal(size=(80, 1))
    result = backtest_overfitting(np.repeat(trial, 3, axis=1), 4)
    assert result.logits == pytest.approx(np.zeros(6))  # the middle of three: not above the median
    assert result.pbo == 1.0


@pytest.mark.slow
def test_a_thousand_trials_of_ten_years_take_seconds() -> None:
    returns = np.random.default_rng(4).normal(0, 0.01, (2500, 1000))
    began = time.process_time()
    result = backtest_overfitting(returns, 16)
    assert len(result.logits) == 12870
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("returns", "blocks", "message"),
    [
        (np.zeros((40, 1)), 4, "at least two trials, got 1"),
        (np.random.default_rng(0).normal(size=(40, 3)), 5, "an even number of blocks from 2 to 20, got 5"),
        (np.random.default_rng(0).normal(size=(40, 3)), 22, "an even number of blocks from 2 to 20, got 22"),
        (np.random.default_rng(0).normal(size=(7, 3)), 4, "at least 8 bars, got 7"),
        (np.zeros(40), 4, "bars x trials"),
    ],
)
def test_invalid_returns_are_refused(returns: np.ndarray, blocks: int, message: str) -> None:
    with pytest.raises(InputError) as excinfo:
        backtest_overfitting(returns, blocks)
    assert message in str(excinfo.value)

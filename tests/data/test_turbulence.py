"""Turbulence against plain loops, with gaps and where the covariance is singular."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from finrl_pod.data.price_features import turbulence, turbulent_bars
from tests.data.panels import panel, random_panel

PANEL = random_panel()


def test_turbulence_equals_the_loop_of_finrl_without_gaps() -> None:
    source = panel(random_panel(seed=3).close[:, [0, 4, 5]])
    returns = pd.DataFrame(source.close).pct_change()
    expected = np.full(len(returns), np.nan)
    for t in range(253, len(returns)):
        past = returns.iloc[t - 252 : t]
        deviation = (returns.iloc[t] - past.mean()).to_numpy()
        expected[t] = deviation @ np.linalg.pinv(past.cov().to_numpy()) @ deviation
    np.testing.assert_allclose(turbulence(source), expected, rtol=1e-8)


def test_turbulence_with_gaps_equals_a_plain_loop() -> None:
    bars, assets = PANEL.close.shape
    simple = np.stack(
        [pd.Series(PANEL.close[:, i]).dropna().pct_change().reindex(range(bars)) for i in range(assets)], 1
    )
    expected = np.full(bars, np.nan)
    for t in range(253, bars):
        past = simple[t - 252 : t]
        included = [i for i in range(assets) if np.isfinite(simple[t, i]) and np.isfinite(past[:, i]).sum() >= 126]
        centred = {i: past[:, i] - np.nanmean(past[:, i]) for i in included}
        degrees = {i: np.isfinite(past[:, i]).sum() - 1 for i in included}
        s = [
            [np.nansum(centred[i] * centred[j]) / np.sqrt(degrees[i] * degrees[j]) for j in included] for i in included
        ]
        deviation = np.array([simple[t, i] - np.nanmean(past[:, i]) for i in included])
        expected[t] = deviation @ np.linalg.inv(np.array(s)) @ deviation
    np.testing.assert_allclose(turbulence(PANEL), expected, rtol=1e-8)


def test_turbulence_ignores_copies_and_constant_tickers() -> None:
    """A copied ticker adds no dimension, a constant ticker has no scale; neither causes warnings or overflows."""
    close = random_panel(seed=3).close[:, [0, 4, 5]]
    constant = np.full((len(close), 1), 7.25)
    constant[-1] = 8.0
    with_copies = turbulence(panel(np.hstack([close, close[:, :1], constant])))
    np.testing.assert_allclose(with_copies, turbulence(panel(close)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["more tickers than bars", "copies that differ on the last bar", "near copies"])
def test_a_singular_covariance_takes_the_pseudo_inverse(kind: str) -> None:
    close = random_panel(seed=4, bars=60, assets=30).close[:, [0, *range(5, 30)]]
    if kind != "more tickers than bars":
        close = np.hstack([close[:, :4], close[:, :1]])
        if kind == "near copies":
            close[:, -1] *= 1 + 1e-9 * np.random.default_rng(0).normal(size=60)
        close[-1, -1] *= 1.01
    returns = pd.DataFrame(close).pct_change().to_numpy()
    expected = np.full(60, np.nan)
    for t in range(21, 60):
        past = returns[t - 20 : t]
        deviation = (returns[t] - past.mean(0)) / past.std(0, ddof=1)
        expected[t] = deviation @ np.linalg.pinv(np.corrcoef(past.T), rcond=1e-10, hermitian=True) @ deviation
    np.testing.assert_allclose(turbulence(panel(close), window=20), expected, rtol=1e-6)


def test_turbulent_bars_are_those_above_the_limit() -> None:
    values = torch.tensor([torch.nan, 1.0, 2.0, 3.0], dtype=torch.float64)
    bars = turbulent_bars(values, 2.0)
    assert bars is not None
    assert bars.tolist() == [False, False, False, True]


def test_a_limit_of_zero_turns_the_rule_off() -> None:
    assert turbulent_bars(torch.ones(3), 0.0) is None
    assert turbulent_bars(None, 2.0) is None

"""Turbulence against plain loops, with gaps and where the covariance is singular."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from finrl_pod.data.turbulence import turbulence, turbulent_bars
from tests.data.panels import panel, random_panel

PANEL = random_panel()


def test_turbulence_equals_finrls_loop_where_every_ticker_is_there() -> None:
    source = panel(random_panel(seed=3).close[:, [0, 4, 5]])
    returns = pd.DataFrame(source.close).pct_change()
    expected = np.full(len(returns), np.nan)
    for t in range(253, len(returns)):
        past = returns.iloc[t - 252 : t]
        away = (returns.iloc[t] - past.mean()).to_numpy()
        expected[t] = away @ np.linalg.pinv(past.cov().to_numpy()) @ away
    np.testing.assert_allclose(turbulence(source), expected, rtol=1e-8)


def test_turbulence_with_gaps_equals_a_plain_loop() -> None:
    bars, assets = PANEL.close.shape
    simple = np.stack(
        [pd.Series(PANEL.close[:, i]).dropna().pct_change().reindex(range(bars)) for i in range(assets)], 1
    )
    expected = np.full(bars, np.nan)
    for t in range(253, bars):
        past = simple[t - 252 : t]
        use = [i for i in range(assets) if np.isfinite(simple[t, i]) and np.isfinite(past[:, i]).sum() >= 126]
        centred = {i: past[:, i] - np.nanmean(past[:, i]) for i in use}
        size = {i: np.isfinite(past[:, i]).sum() - 1 for i in use}
        s = [[np.nansum(centred[i] * centred[j]) / np.sqrt(size[i] * size[j]) for j in use] for i in use]
        away = np.array([simple[t, i] - np.nanmean(past[:, i]) for i in use])
        expected[t] = away @ np.linalg.inv(np.array(s)) @ away
    np.testing.assert_allclose(turbulence(PANEL), expected, rtol=1e-8)


def test_turbulence_of_twins_and_still_tickers_stays_that_of_the_others() -> None:
    """A copy of a ticker adds no direction, a ticker that never moved no scale, and no bar warns or overflows."""
    close = random_panel(seed=3).close[:, [0, 4, 5]]
    still = np.full((len(close), 1), 7.25)
    still[-1] = 8.0
    twins = turbulence(panel(np.hstack([close, close[:, :1], still])))
    np.testing.assert_allclose(twins, turbulence(panel(close)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["more tickers than bars", "twins that part on the last bar", "near twins"])
def test_a_singular_covariance_takes_the_pseudo_inverse(kind: str) -> None:
    close = random_panel(seed=4, bars=60, assets=30).close[:, [0, *range(5, 30)]]
    if kind != "more tickers than bars":
        close = np.hstack([close[:, :4], close[:, :1]])
        if kind == "near twins":
            close[:, -1] *= 1 + 1e-9 * np.random.default_rng(0).normal(size=60)
        close[-1, -1] *= 1.01
    returns = pd.DataFrame(close).pct_change().to_numpy()
    expected = np.full(60, np.nan)
    for t in range(21, 60):
        past = returns[t - 20 : t]
        away = (returns[t] - past.mean(0)) / past.std(0, ddof=1)
        expected[t] = away @ np.linalg.pinv(np.corrcoef(past.T), rcond=1e-10, hermitian=True) @ away
    np.testing.assert_allclose(turbulence(panel(close), window=20), expected, rtol=1e-6)


def test_turbulent_bars_are_those_above_the_limit() -> None:
    values = torch.tensor([torch.nan, 1.0, 2.0, 3.0], dtype=torch.float64)
    bars = turbulent_bars(values, 2.0)
    assert bars is not None
    assert bars.tolist() == [False, False, False, True]


def test_a_limit_of_zero_turns_the_rule_off() -> None:
    assert turbulent_bars(torch.ones(3), 0.0) is None
    assert turbulent_bars(None, 2.0) is None

"""Augmentations of a panel: bootstrap and removed assets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.data.augmentation import (
    bootstrap,
    resample_returns,
    stationary_rows,
    without_assets,
)
from finrl_pod.data.features import compute
from finrl_pod.data.panel import check
from finrl_pod.types import Floats, Panel
from tests.data.panels import END, START, panel, random_panel

FIRST, LAST = 60, 399
SPREAD = np.random.default_rng(5).uniform(1e-4, 1e-3, (420, 6))
PANEL = random_panel()
PANEL = dataclasses.replace(PANEL, spread=np.where(PANEL.tradable, SPREAD, np.nan))


def own_returns(source: Panel, asset: int, rows: slice) -> Floats:
    """Log returns between an asset's consecutive bars, within these rows."""
    close = source.close[rows, asset]
    returns: Floats = np.diff(np.log(close[np.isfinite(close)]))
    return returns


def test_resampling_with_unchanged_rows_returns_the_same_panel() -> None:
    same_rows = np.arange(FIRST + 1, LAST + 1)[None]
    varied = resample_returns(PANEL, FIRST, same_rows, np.random.default_rng(0))
    for name in PANEL.columns:
        np.testing.assert_allclose(getattr(varied, name), getattr(PANEL, name), rtol=1e-9)
    assert varied.benchmark is not None
    assert PANEL.benchmark is not None
    np.testing.assert_allclose(varied.benchmark.close, PANEL.benchmark.close, rtol=1e-9)


def test_resampled_rows_keep_the_cross_section() -> None:
    """Where all assets trade, the returns of all assets and the index at a bar come from the same drawn row."""
    complete = [0, 4, 5]
    rows = stationary_rows(FIRST + 1, LAST, 20, np.random.default_rng(3))
    varied = resample_returns(PANEL, FIRST, rows[None], np.random.default_rng(0))
    drawn = np.diff(np.log(varied.close[:, complete]), axis=0)
    returns = np.diff(np.log(PANEL.close[:, complete]), axis=0)
    np.testing.assert_allclose(drawn[FIRST:LAST], returns[rows - 1], atol=1e-12)
    np.testing.assert_allclose(drawn[: FIRST - 1], returns[: FIRST - 1], atol=1e-12)
    np.testing.assert_allclose(drawn[LAST:], returns[LAST:], atol=1e-12)
    for name in ("open", "high", "low"):
        relative = (getattr(PANEL, name) / PANEL.close)[:, complete]
        np.testing.assert_allclose(
            (getattr(varied, name) / varied.close)[FIRST + 1 : LAST + 1][:, complete], relative[rows], rtol=1e-9
        )
    assert varied.spread is not None
    np.testing.assert_allclose(varied.spread[FIRST + 1 : LAST + 1][:, complete], SPREAD[rows][:, complete], rtol=1e-9)
    assert varied.benchmark is not None
    assert PANEL.benchmark is not None
    index, index_before = (np.diff(np.log(x.benchmark.close)) for x in (varied, PANEL) if x.benchmark is not None)
    np.testing.assert_allclose(index[FIRST:LAST], index_before[rows - 1], atol=1e-12)
    assert not [flaw for flaw in check(varied) if flaw.hard]


def test_bootstrap_keeps_listing_dates_and_draws_returns_of_the_same_asset() -> None:
    varied = bootstrap(PANEL, FIRST, LAST, 20, np.random.default_rng(1))
    np.testing.assert_array_equal(varied.tradable, PANEL.tradable)
    assert np.isfinite(varied.close[varied.tradable]).all()
    assert np.isnan(varied.close[:START, 1]).all()
    assert np.isnan(varied.close[END + 1 :, 2]).all()
    rows = slice(FIRST, LAST + 1)
    for asset in range(6):
        original = own_returns(PANEL, asset, rows)
        drawn = own_returns(varied, asset, rows)
        nearest = np.abs(drawn[:, None] - original).min(1)
        assert nearest.max() < 1e-9, f"asset {asset} has a return that is not in its history"


def test_asset_listed_late_is_resampled_from_its_few_returns() -> None:
    close = np.exp(np.random.default_rng(0).normal(0, 0.01, (400, 2)).cumsum(0))
    close[:392, 1] = np.nan
    source = panel(close)
    varied = bootstrap(source, 0, 399, 10, np.random.default_rng(2))
    original, drawn = own_returns(source, 1, slice(0, 400)), own_returns(varied, 1, slice(0, 400))
    assert np.abs(drawn[:, None] - original).min(1).max() < 1e-9
    assert varied.close[392, 1] == pytest.approx(close[392, 1])


def test_marginal_distributions_are_preserved_on_average() -> None:
    """Mean, volatility and first-order autocorrelation over many draws, against those of the circular history."""
    rng = np.random.default_rng(0)
    returns = np.convolve(rng.normal(0, 0.01, 801), [1, 0.8], "valid")[:, None] + 0.001
    source = panel(np.exp(np.vstack([[0.0], returns]).cumsum(0)))
    draws = np.stack(
        [np.diff(np.log(bootstrap(source, 0, 800, 40, np.random.default_rng(i)).close[:, 0])) for i in range(300)]
    )
    assert draws.mean() == pytest.approx(returns.mean(), abs=4 * draws.mean(1).std() / np.sqrt(300))
    assert draws.var() == pytest.approx(returns.var(), rel=0.03)
    centred, history = draws - draws.mean(), returns[:, 0] - returns.mean()
    correlation = (centred[:, 1:] * centred[:, :-1]).mean() / draws.var()
    circular = (history * np.roll(history, 1)).mean() / history.var()
    assert correlation == pytest.approx(circular * (1 - 1 / 40), abs=0.02)  # a block ends with probability 1/40


def test_block_lengths_are_geometric() -> None:
    rows = stationary_rows(5, 20_004, 25, np.random.default_rng(0))
    assert rows.min() >= 5
    assert rows.max() <= 20_004
    assert len(rows) == 20_000
    ends = (np.diff(rows) != 1) & ~((rows[1:] == 5) & (rows[:-1] == 20_004))
    assert 20_000 / (ends.sum() + 1) == pytest.approx(25, rel=0.1)
    assert (np.diff(stationary_rows(0, 999, 1e9, np.random.default_rng(0))) % 1000 == 1).all()


def test_removed_assets_never_trade_and_are_not_ranked() -> None:
    keep = np.array([True, False, True, True, False, True])
    varied = without_assets(PANEL, keep)
    assert not varied.tradable[:, ~keep].any()
    np.testing.assert_array_equal(varied.tradable[:, keep], PANEL.tradable[:, keep])
    features = compute(varied, ("return_5_rank", "return_5"))
    assert np.isnan(features[:, ~keep]).all()
    ranks = features[200, keep, 0]
    assert len(set(ranks)) == 4
    assert not np.allclose(ranks, compute(PANEL, ("return_5_rank",))[200, keep, 0])

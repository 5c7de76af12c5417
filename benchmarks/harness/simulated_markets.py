"""Simulated markets as arrays, each determined by a seed. T bars, N assets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finrl_pod import random
from finrl_pod.types import Floats

BASIS_POINT = 1e-4
START = 100.0  # initial price of every asset
REWARD_LAG = 2  # a decision at t fills at t+1 and earns the return to t+2


class PlantedMarket(NamedTuple):
    """signal [T, N], known at bar t; returns [T, N], simple, from bar t-1 to t; close [T, N]."""

    signal: Floats
    returns: Floats
    close: Floats


def planted(
    seed: int,
    bars: int = 20_000,
    assets: int = 20,
    *,
    persistence: float = 0.95,
    information_coefficient: float = 0.05,
    volatility: float = 0.015,
) -> PlantedMarket:
    """Simulate a signal that weakly predicts the return earned by a decision.

        s[t] = persistence s[t-1] + sqrt(1 - persistence^2) e[t]
        r[t+2] = volatility (IC s[t] + sqrt(1 - IC^2) u[t])

    with e, u standard normal and IC the information coefficient: s has unit variance, and its correlation with the
    return of the interval from the fill at t+1 to t+2 is IC. The first two returns are zero.
    """
    rng = np.random.default_rng(random.key(seed, 0, "planted world"))
    shocks, noise = rng.normal(size=(2, bars, assets))
    signal = np.empty((bars, assets))
    signal[0] = shocks[0]
    innovation = np.sqrt(1 - persistence**2)
    for t in range(1, bars):
        signal[t] = persistence * signal[t - 1] + innovation * shocks[t]
    weight = information_coefficient
    earned_returns = volatility * (weight * signal + np.sqrt(1 - weight**2) * noise)
    returns = np.zeros((bars, assets))
    returns[REWARD_LAG:] = earned_returns[:-REWARD_LAG]
    return PlantedMarket(signal, returns, prices(returns))


def without_edge(returns: Floats, bars: int, seed: int) -> Floats:
    """Resample simple returns [bars, N] without systematic differences between assets or days.

    returns: historical returns [R, N]. The mean of each asset is replaced by the common mean, then rows are drawn with
    replacement: volatilities, correlations and fat tails are kept, means and order in time are not. (Shuffling rows
    only would keep the means, and with them the survivorship bias.)
    """
    rng = np.random.default_rng(random.key(seed, 0, "world without edge"))
    level: Floats = returns - returns.mean(0) + returns.mean()
    return level[rng.integers(0, len(level), bars)]


def prices(returns: Floats) -> Floats:
    """Convert simple returns [T, N] to closes [T, N], starting from 100 before the first return."""
    return np.asarray(START * np.cumprod(1 + returns, axis=0), dtype=np.float64)


def random_walks(days: int, assets: int, features: int, seed: int = 0) -> tuple[Floats, NDArray[np.float32]]:
    """Simulate closes [T, N] of geometric random walks, and a feature table [T, N, 1 + F] float32.

    The first column is the price in units of 100, the others are standard normal noise.
    """
    rng = np.random.default_rng(seed)
    close = START * rng.uniform(0.5, 2, assets) * np.exp(np.cumsum(rng.normal(3e-4, 0.015, (days, assets)), 0))
    noise = rng.normal(size=(days, assets, features))
    return close, np.concatenate([close[..., None] / START, noise], -1).astype(np.float32)


def shuffled_over_assets(values: Floats, seed: int) -> Floats:
    """Return the ranks over the assets at each bar [T, N], from -1 to 1, randomly permuted at every bar.

    Ranks are used because permuted values would still reveal the market return by their mean and skew. Bars with a
    missing value are NaN.
    """
    rng = np.random.default_rng(random.key(seed, 0, "shuffle over assets"))
    ranks = values.argsort(1).argsort(1) / max(values.shape[1] - 1, 1) * 2 - 1
    return np.where(np.isfinite(values).all(1, keepdims=True), rng.permuted(ranks, axis=1), np.nan)


def shifted(values: Floats, bars: int) -> Floats:
    """Return values [T, N] delayed by `bars`; NaN for the first bars."""
    delayed_values = np.full_like(values, np.nan)
    delayed_values[bars:] = values[:-bars]
    return delayed_values

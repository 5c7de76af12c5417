"""Pipelines for the audit's tests: a sound one, and strategies, features and environments with planted faults."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv
from finrl_pod_strategies.baselines import EqualWeight, Momentum

from finrl_pod.data import features
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import (
    Benchmark,
    EnvStep,
    Floats,
    MarketTensor,
    Normaliser,
    Observation,
    Panel,
    Positions,
    Tensor,
    Window,
)

BARS, ASSETS, OUT_OF_SAMPLE = 900, 4, 600
FEATURES = ("return_1", "return_21", "volatility_21_rank", "macd")
RULES = EnvironmentConfig(window=30, envs=8, group=4)


def panel(gap: bool = False, opens: bool = False) -> Panel:
    """Correlated random walks with an index. gap: some bars of one ticker are missing. opens: with opening prices."""
    rng = np.random.default_rng(21)
    returns = rng.normal(3e-4, 0.012, (BARS, ASSETS)) + rng.normal(0, 0.006, (BARS, 1))
    close = 50 * np.exp(returns.cumsum(0))
    opened = close * np.exp(rng.normal(0, 0.004, close.shape))
    tradable = np.ones(close.shape, bool)
    if gap:
        for start in range(610, 890, 12):
            tradable[start : start + 4, 2] = False
    hidden = np.where(tradable, close, np.nan)
    days = np.datetime64("2018-01-01", "ns") + np.arange(BARS) * np.timedelta64(1, "D")
    index = Benchmark("index", 1000 * np.exp(returns.mean(1).cumsum()), price_only=True)
    opened_or_none = np.where(tradable, opened, np.nan) if opens else None
    return Panel(days, tuple("ABCD"), hidden, tradable, open=opened_or_none, benchmark=index, name="audited")


def normaliser_of(prices: Panel, names: tuple[str, ...] = FEATURES, last: int = OUT_OF_SAMPLE - 1) -> Normaliser:
    return build_market(prices, names, (0, last)).normaliser


def environment(kind: type[PortfolioEnv] = PortfolioEnv) -> Callable[[MarketTensor, int, int], PortfolioEnv]:
    return lambda market, first, last: kind(market, RULES, first=first, last=last)


def sound_pipeline(prices: Panel | None = None, names: tuple[str, ...] = FEATURES, **changes: Any) -> Pipeline:
    """Frozen normaliser, two strategies, one environment."""
    prices = panel() if prices is None else prices
    frozen = normaliser_of(prices, names)
    pipeline = Pipeline(
        name="sound",
        panel=prices,
        build=lambda p: build_market(p, names, frozen),
        rules=ExecutionRules(),
        cash=1e6,
        out_of_sample=OUT_OF_SAMPLE,
        strategies={"equal_weight": EqualWeight()},
        make_env=environment(),
    )
    return dataclasses.replace(pipeline, **changes)


@contextlib.contextmanager
def registered_feature(name: str, function: Callable[[Panel], Floats]) -> Iterator[str]:
    """Register a feature for the duration of a test."""
    features.register(name)(function)
    yield name
    del features._FEATURES[name]


def centred_average(prices: Panel) -> Floats:
    """A moving average that reaches ten bars into the future."""
    average = pd.DataFrame(prices.close).rolling(21, center=True, min_periods=1).mean().to_numpy()
    return np.asarray(prices.close / average - 1)


def scaled_by_all_bars(prices: Panel) -> Floats:
    """A return divided by its deviation over all bars."""
    returns = np.log(prices.close[1:] / prices.close[:-1])
    return np.vstack([np.full((1, prices.close.shape[1]), np.nan), returns / returns.std()])


def back_filled(prices: Panel) -> Panel:
    """Missing bars take the price of the next one."""
    close = pd.DataFrame(prices.close).bfill().to_numpy()
    return dataclasses.replace(prices, close=close, tradable=np.isfinite(close))


class LookaheadStrategy:
    """Hold the asset that rises most in the next bar, read from the whole market."""

    name = "lookahead"
    feature_names: tuple[str, ...] = FEATURES[:1]
    lookback = 1

    def __init__(self, source: Callable[[], MarketTensor]) -> None:
        self.source = source

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        market = self.source()
        t = int(np.searchsorted(market.times, window.times[-1]))
        ahead = min(t + 1, len(market.times) - 1)
        return np.eye(len(window.symbols))[int((market.close[ahead] / market.close[t]).argmax())]


class RandomStrategy:
    """Draw new weights at every call, without a seed per bar."""

    name = "random"
    feature_names: tuple[str, ...] = ()
    lookback = 1

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        return self.rng.dirichlet(np.ones(len(window.symbols)))


class WholeHistory:
    """Weight assets by the sum of all prices in the window, which depends on its length."""

    name = "whole_history"
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        total = np.nansum(window.close, axis=0)
        return np.asarray(total / total.sum())


class LookaheadEnv(PortfolioEnv):
    """Observe holdings at the prices of the next bar."""

    def reset(self, seed: int, *, stagger: bool = True) -> Observation:
        return self._ahead(super().reset(seed, stagger=stagger))

    def step(self, action: Tensor) -> EnvStep:
        outcome = super().step(action)
        return outcome._replace(observation=self._ahead(outcome.observation))

    def _ahead(self, shown: Observation) -> Observation:
        close = self.market.close
        tomorrow = (shown.bar + 1).clamp(max=len(close) - 1)
        change = (close[tomorrow] / close[shown.bar]).repeat_interleave(self.accounts, 1)  # [P, E, N]
        held = shown.account[..., 1:] * change.to(shown.account.dtype)
        return Observation(shown.bar, torch.cat([shown.account[..., :1], held], -1))


class SameCloseEnv(PortfolioEnv):
    """Fill at the observed close, whatever the market's fill rule."""

    def __init__(self, market: MarketTensor, config: EnvironmentConfig, **options: Any) -> None:
        super().__init__(dataclasses.replace(market, fill=market.close), config, **options)


MOMENTUM = Momentum()

"""Simulated worlds of the study of agents: without an edge, with a planted signal, and placebo features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import agent_cells
import numpy as np
import pandas as pd
import torch
from finrl_pod_app.bench.simulated_markets import planted, prices, without_edge
from finrl_pod_app.services.prices import load_panel
from finrl_pod_strategies.mandate_account import MandateAccount

from finrl_pod import random
from finrl_pod.data.features import names, register
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import make_splits
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import FeatureConfig, MandateConfig, RunConfig, SplitConfig
from finrl_pod.types import Floats, Panel, Positions, Times, Window

FEATURE_COUNT = 10
NAMES = tuple(f"study_{i}" for i in range(FEATURE_COUNT))
# Ten years of training, two of validation, twelve of test.
WORLD_SPLITS = SplitConfig(("1991-01-01", "2000-12-31"), ("2001-01-01", "2002-12-31"), ("2003-01-01", "2014-12-31"))
WORLD_TIMES = pd.bdate_range("1990-01-01", "2015-01-15").to_numpy()

# A planted signal that lasts: correlation 0.03 with returns of 21 bars, half-life of 21 bars.
ASSETS, INFORMATION_COEFFICIENT, HALF_LIFE = 300, 0.03, 21
PERSISTENCE = 0.5 ** (1 / HALF_LIFE)
CLIPS = (0.5, 1.0, 2.0, 5.0)
MAX_SCORE = 4.0  # tanh(4) is 0.9993: where clip(k signal) reaches its ends

_values: dict[tuple[str, str], Floats] = {}  # (panel name, feature) -> [T, N]
_times: dict[str, Times] = {}  # panel name -> [T]


def use_features(panel: Panel, values: Mapping[str, Floats]) -> None:
    """Make arrays [T, N] available as features of a panel, and of any range of its bars, by its name."""
    _times[panel.name] = panel.times
    for name, array in values.items():
        _values[panel.name, name] = array
        if name not in names():
            register(name)(partial(_rows, name))


def _rows(name: str, panel: Panel) -> Floats:
    """Feature [T, N] of a panel that `use_features` was called with, or of a part of it."""
    index = np.searchsorted(_times[panel.name], panel.times)
    return _values[panel.name, name][index]


# ---------------------------------------------------------------------- worlds without an edge


def no_edge(seed: int) -> dict[str, Any]:
    """Row of the default in a world without an edge: the difference of Sharpe ratios over twelve years."""
    sample = load_panel(RunConfig())
    history = sample.close[1:] / sample.close[:-1] - 1
    returns = without_edge(history[: 26 * 252], len(WORLD_TIMES), 5_000 + seed)
    panel = make_panel(
        WORLD_TIMES, sample.symbols, {"close": prices(returns)}, name=f"no-edge-{seed}", source="simulated"
    )
    config = dataclasses.replace(agent_cells.default("sample"), seed=seed, splits=WORLD_SPLITS)
    trained = agent_cells.run_agent(config, panel, config.mandate)
    settings = {"agent": "default", "seed": seed}
    row = agent_cells.comparison_rows(trained.champion, trained.base, trained.equal_weight, settings)[0]
    return {**row, "name": "no_edge_difference"}


# ---------------------------------------------------------------------- a planted signal


def planted_capture(seed: int) -> dict[str, Any]:
    """Row of the default on a planted signal: its active information ratio over that of the best clip(k signal)."""
    weight = (1 - PERSISTENCE**HALF_LIFE) / (1 - PERSISTENCE) / np.sqrt(HALF_LIFE)
    world = planted(
        seed,
        len(WORLD_TIMES),
        ASSETS,
        persistence=PERSISTENCE,
        information_coefficient=INFORMATION_COEFFICIENT / weight,
    )
    symbols = tuple(f"S{i:03d}" for i in range(ASSETS))
    panel = make_panel(WORLD_TIMES, symbols, {"close": world.close}, name=f"planted-{seed}", source="simulated")
    noise = {name: persistent(seed, i, len(WORLD_TIMES), ASSETS, HALF_LIFE) for i, name in enumerate(NAMES) if i}
    use_features(panel, {NAMES[0]: world.signal, **noise})
    config = dataclasses.replace(
        agent_cells.default("sample"), seed=seed, splits=WORLD_SPLITS, features=FeatureConfig(NAMES)
    )
    trained = agent_cells.run_agent(config, panel, config.mandate)
    base = simple_returns(trained.base.equity)
    own = _ratio(simple_returns(trained.champion.equity) - base)
    best = {k: _ratio(_signal_returns(world.signal, k, panel, config) - base) for k in CLIPS}
    settings = {"agent": "default", "seed": seed, "information_ratio": own, "best": max(best.values()), "clips": best}
    value = own / max(best.values())
    return {"name": "planted_capture", "value": value, "low": value, "high": value, "unit": "", "config": settings}


def _ratio(active: Floats) -> float:
    return float(active.mean() / active.std(ddof=1) * np.sqrt(agent_cells.YEAR))


def _signal_returns(signal: Floats, k: float, panel: Panel, config: RunConfig) -> Floats:
    """Returns of an account under the mandate whose relative tilts are clip(k signal, -1, 1)."""
    splits = make_splits(panel.times, config.splits)
    market = agent_cells.make_market(panel, config, splits)
    strategy = SignalStrategy(config.mandate, dict(zip(panel.times.tolist(), signal, strict=True)), k)
    terms = (splits.test.first, splits.test.last, rules_of(config.environment), config.environment.cash)
    return simple_returns(backtest(strategy, panel, market, *terms).equity)


class SignalStrategy:
    """Tilts of a known signal under a mandate."""

    feature_names: tuple[str, ...] = ()

    def __init__(self, mandate: MandateConfig, signal: Mapping[int, Floats], k: float) -> None:
        """signal: time in ns -> [N]."""
        self.account, self.signal, self.k = MandateAccount(mandate, 1.0), signal, k
        self.name, self.lookback = f"clip({k} signal)", self.account.lookback

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] of the signal at the window's last bar."""
        relative = np.clip(self.k * self.signal[int(window.times[-1].astype(np.int64))], -1, 1)
        scores = torch.from_numpy(np.arctanh(np.clip(relative, -np.tanh(MAX_SCORE), np.tanh(MAX_SCORE))))
        return self.account.target_weights(scores.unsqueeze(0), lambda weights: weights[0], window, positions)


# ---------------------------------------------------------------------- placebos


def persistent(seed: int, column: int, bars: int, assets: int, half_life: float) -> Floats:
    """AR(1) noise [T, N] of unit variance with a half-life in bars."""
    rng = np.random.default_rng(random.key(seed, column, "persistent noise"))
    rho = 0.5 ** (1 / half_life)
    shocks = rng.normal(size=(bars, assets)) * np.sqrt(1 - rho**2)
    shocks[0] /= np.sqrt(1 - rho**2)
    values = np.empty((bars, assets))
    values[0] = shocks[0]
    for t in range(1, bars):
        values[t] = rho * values[t - 1] + shocks[t]
    return values


def half_lives(panel: Panel, config: RunConfig) -> dict[str, float]:
    """Half-life in bars of each feature's cross-sectional deviations, from their autocorrelation at lag 5."""
    market = agent_cells.make_market(panel, config, make_splits(panel.times, config.splits))
    values = market.features.double().numpy()
    values = values[market.first :] - values[market.first :].mean(1, keepdims=True)
    found = {}
    for i, name in enumerate(config.features.names):
        now, later = values[:-5, :, i], values[5:, :, i]
        correlation = float((now * later).mean() / np.sqrt((now**2).mean() * (later**2).mean() + 1e-12))
        found[name] = float(5 * np.log(0.5) / np.log(np.clip(correlation, 0.05, 0.999)))
    return found


def placebo(seed: int) -> dict[str, Any]:
    """Row of a placebo: mean difference of Sharpe ratios over the folds with random features instead of real ones."""
    differences = {}
    for market, folds in agent_cells.FOLDS.items():
        for fold in folds:
            config = agent_cells.config_of("default", agent_cells.Cell(market, fold, seed))
            panel = dataclasses.replace(load_panel(config), name=f"placebo-{market}-{seed}")
            bars, assets = panel.close.shape
            lives = half_lives(dataclasses.replace(panel, name=market), config)
            values = {
                f"placebo_{i}": persistent(100_000 + seed, i, bars, assets, life)
                for i, life in enumerate(lives.values())
            }
            use_features(panel, values)
            changed = dataclasses.replace(config, features=FeatureConfig(tuple(values)))
            trained = agent_cells.run_agent(changed, panel, config.mandate)
            own, base = (simple_returns(x.equity) for x in (trained.champion, trained.base))
            differences[f"{market}/{fold}"] = _sharpe_difference(own, base)
    value = float(np.mean(list(differences.values())))
    settings = {"seed": seed, "cells": differences}
    return {"name": "placebo", "value": value, "low": value, "high": value, "unit": "", "config": settings}


def _sharpe_difference(own: Floats, base: Floats) -> float:
    return _ratio(own) - _ratio(base)

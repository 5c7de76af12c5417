"""A stress of survivorship: the default on test bars in which some of its stocks fail.

The sample's stocks were chosen in hindsight and none failed. Here, each stock fails with a set probability a year, at a
bar drawn at random: it is delisted, and pays half its last price. The agent is the one trained on the prices as they
are; it and its base face the same failures.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import agent_cells
import numpy as np
from finrl_pod_app.services.prices import load_panel
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod import random
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import Span
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intervals import Interval
from finrl_pod.market.rules import rules_of
from finrl_pod.types import Panel

RATES = (0.01, 0.02)  # share of the stocks that fail in a year
LOSS = 0.5
DRAWS = 10


def stress(market: str, fold: str, seed: int) -> list[dict[str, Any]]:
    """Rows of a cell, one per rate: mean difference of Sharpe ratios over draws of failures, with its range."""
    config = agent_cells.config_of("default", agent_cells.Cell(market, fold, seed))
    config = dataclasses.replace(config, environment=dataclasses.replace(config.environment, delisting_return=-LOSS))
    panel = load_panel(config)
    trained = agent_cells.train_agent(config, panel)
    rows = []
    for rate in RATES:
        found = []
        for draw in range(DRAWS):
            stressed = with_failures(panel, trained.splits.test, rate, draw)
            prices = agent_cells.make_market(stressed, config, trained.splits)
            terms = (stressed, prices, trained.splits.test.first, trained.splits.test.last)
            rules = (rules_of(config.environment), config.environment.cash)
            champion = backtest(trained.champion, *terms, *rules)
            base = backtest(BasePortfolio(config.mandate, config.environment.leverage), *terms, *rules)
            failed = int((np.isnan(stressed.close[terms[3]]) & ~np.isnan(panel.close[terms[3]])).sum())
            sharpe = [result.metrics["sharpe"] for result in (champion, base)]
            deeper = champion.metrics["max_drawdown"] - base.metrics["max_drawdown"]
            found.append((sharpe[0] - sharpe[1], *sharpe, deeper, failed))
        difference, sharpe, base_sharpe, deeper, failures = np.mean(found, axis=0)
        settings = {
            "agent": "default", "market": market, "fold": fold, "seed": seed, "rate": rate, "draws": DRAWS,
            "failures": failures, "sharpe": sharpe, "base_sharpe": base_sharpe, "drawdown_difference": deeper,
        }  # fmt: skip
        differences = [x[0] for x in found]
        interval = Interval(float(difference), float(min(differences)), float(max(differences)))
        row = agent_cells.row("stress_difference", interval, settings)
        rows.append({**row, "config": {**settings, "interval": "range of the draws"}})
    return rows


def with_failures(panel: Panel, test: Span, rate: float, draw: int) -> Panel:
    """The panel with stocks that fail in the test bars at an annual rate: no prices from there on."""
    rng = np.random.default_rng(random.key(draw, round(rate * 1_000), "failures"))
    closes = panel.close.copy()
    bars = test.first + np.ceil(rng.exponential(agent_cells.YEAR / rate, panel.close.shape[1])).astype(int)
    for asset, bar in enumerate(bars):
        if bar < test.last:
            closes[bar:, asset] = np.nan
    fields = {"close": closes} if panel.spread is None else {"close": closes, "spread": panel.spread}
    return make_panel(panel.times, panel.symbols, fields, name=panel.name, source=f"{panel.source}, with failures")

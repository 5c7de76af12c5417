"""Accounts that trained members control, bar by bar in float64: the backtests behind scores and solved weights."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from finrl_pod.data.price_features import turbulent_bars
from finrl_pod.evaluate.backtest import Ledger, simulate
from finrl_pod.evaluate.metrics import METRIC_NAMES, bars_per_year, summary
from finrl_pod.market.account_extras import AccountTracker
from finrl_pod.market.mandate import MandateAccounts, MandateTable, active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.rl.acting.actor import Actor, DecisionInputs, target_weights, tilt_scores
from finrl_pod.rl.networks.layers import Params
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Tensor

NO_METRICS = dict.fromkeys(METRIC_NAMES, math.nan)


def run_members(
    actor: Actor,
    params: Params,
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> Ledger:
    """Simulate P accounts from bar first to last, each controlled by one member without exploration.

    mandate: the one that the members were trained under. The equity of a member that ever has NaN weights is NaN
    throughout.
    """
    members = next(iter(params.values())).shape[0]
    close = market.close.double()
    valid = torch.ones(members, 1, dtype=torch.bool, device=close.device)
    turbulent = turbulent_bars(market.turbulence, config.turbulence_limit)
    if (bounds := active_mandate(mandate)) is None:
        accounts = None
    else:
        table = MandateTable(market, bounds, bars_per_year(market.times), torch.float64)
        accounts = MandateAccounts(table, config.leverage)

    tracker = AccountTracker(config, mandate)
    rules = rules_of(config)
    fill = close if tracker.is_empty else Venue(market, rules, torch.float64).fill

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:
        values = shares * close[t]
        equity = (cash + values.sum(-1)).clamp(min=1e-9)
        holdings = values / equity.unsqueeze(-1)
        virtual, _, budget = (None, None, None) if accounts is None else accounts.state(holdings, close[t])
        extras = tracker.observe(holdings, equity, fill[t - 1] / close[t - 1], virtual, budget)
        target = decide_from(t, holdings, equity, extras)
        tracker.decided(target)
        return target

    def decide_from(t: int, holdings: Tensor, equity: Tensor, extras: Tensor | None) -> Tensor | None:
        if turbulent is not None and bool(turbulent[t]):
            return torch.zeros_like(holdings)
        rows = slice(max(0, t + 1 - actor.spec.lookback), t + 1)
        inputs = DecisionInputs(market.features[rows], market.tradable[rows], holdings, extras)
        if accounts is not None:
            scores = tilt_scores(actor, params, inputs, config)
            valid.logical_and_(torch.isfinite(scores).all(-1, keepdim=True))
            return accounts.decide(t, torch.where(valid, scores, 0.0), holdings, close[t])
        weights = target_weights(actor, params, inputs, equity, close[t], config)
        valid.logical_and_(torch.isfinite(weights).all(-1, keepdim=True))
        return torch.where(valid, weights, 0.0)

    ledger = simulate(market, decide, first, last, rules, config.cash, batch=members)
    return replace(ledger, equity=torch.where(valid[:, 0], ledger.equity, torch.nan))


def metrics_of(ledger: Ledger, market: MarketTensor) -> list[dict[str, float]]:
    """Metrics of each account of a ledger on a market; all NaN where its equity is not finite."""
    periods_per_year = bars_per_year(market.times)
    columns = (ledger.equity, ledger.turnover, ledger.costs)
    equity, turnover, costs = (x.cpu().numpy() for x in columns)
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy()
    return [
        summary(equity[:, p], turnover[:, p], costs[:, p], periods_per_year, risk_free)
        if np.isfinite(equity[:, p]).all()
        else dict(NO_METRICS)
        for p in range(equity.shape[1])
    ]

"""Check fills: a decision that observed a closing price must not trade at that price."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, random_actions
from finrl_pod.evaluate.simulate import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor, Panel, Tensor

CHECK = "fills"
PRICE_TOLERANCE = 1e-6  # relative
CASH_TOLERANCE = 1e-5  # relative; environments may keep accounts in float32
SPAN = 120  # bars on which the backtest and the environment are checked


def check_fills(pipeline: Pipeline) -> list[Finding]:
    """Require that the market's fill prices, the backtest and the environment trade at the bar after the decision."""
    panel = pipeline.prepare(pipeline.panel)
    market = pipeline.build(panel)
    found = [
        *_check_market(pipeline, panel, market),
        *_check_backtest(pipeline, panel, market),
        *_check_environment(pipeline, panel),
    ]
    if found:
        return found
    price = "open" if panel.open is not None else "close"
    message = f"Decisions fill at the next bar's {price} in the market, the backtest and the environment."
    return [Finding(CHECK, "pass", "fill price", message)]


def _check_market(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    next_bar = (panel.close if panel.open is None else panel.open)[1:]
    observed, fill = panel.close[:-1], market.fill[:-1].cpu().numpy()
    trades = market.fillable[:-1].cpu().numpy() & panel.tradable[1:]
    with np.errstate(invalid="ignore"):
        wrong = trades & ~(np.abs(fill - next_bar) <= PRICE_TOLERANCE * next_bar)
        same = wrong & (np.abs(fill - observed) <= PRICE_TOLERANCE * observed)
    if not wrong.any():
        return []
    t = int(wrong.any(1).argmax())
    n = int(wrong[t].argmax())
    bar, symbol = pipeline.bar(t), panel.symbols[n]
    how = "at the close that it observed" if same[t, n] else "at a price other than the next bar's"
    message = f"The decision at {bar} on {symbol} fills {how} ({fill[t, n]:g}); the next bar has {next_bar[t, n]:g}."
    return [Finding(CHECK, "fail", "the market's fill price", message, bar, float(wrong.mean()))]


def _check_backtest(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    """Compare the price that the backtest engine paid for single purchases with the next bar's."""
    first = max(pipeline.out_of_sample, 0)
    last = min(first + SPAN, len(panel.times) - 1)
    free = ExecutionRules(cost_rate=0.0)
    next_bar = panel.close if panel.open is None else panel.open
    for t in range(first, last - 1, max(1, (last - first) // 8)):
        tradable = np.flatnonzero(panel.tradable[t] & panel.tradable[t + 1])
        if not len(tradable):
            continue
        n = int(tradable[0])

        def buy(_t: int, _cash: Tensor, shares: Tensor, n: int = n) -> Tensor:
            target = torch.zeros_like(shares)
            target[:, n] = 0.5
            return target

        ledger = simulate(market, buy, t, t + 1, free, pipeline.cash)
        paid = float((pipeline.cash - ledger.cash[0]) / ledger.shares[0, n])
        if abs(paid - next_bar[t + 1, n]) > PRICE_TOLERANCE * paid and market.fill_rule != "same_close":
            bar = pipeline.bar(t)
            message = (
                f"The backtest paid {paid:g} for {panel.symbols[n]}, decided at {bar}; the next bar has "
                f"{next_bar[t + 1, n]:g}."
            )
            return [Finding(CHECK, "fail", "the backtest's engine", message, bar)]
    return []


def _check_environment(pipeline: Pipeline, panel: Panel) -> list[Finding]:
    """On closes only, a first purchase marked at the bar of its fill must change the account only by its costs."""
    if pipeline.make_env is None:
        return []
    closes = dataclasses.replace(panel, open=None)
    try:
        market = pipeline.build(closes)
    except FeatureError:
        return []  # features need opening prices: fills and marks cannot be separated
    first = max(pipeline.out_of_sample, market.first)
    env = pipeline.make_env(market, first, min(first + SPAN, market.steps - 1))
    observation = env.reset(0)
    generator = random.generator(0, 0, "audit purchases")
    outcome = env.step(random_actions(env, generator, torch.rand))
    gap = (outcome.equity.double() + outcome.cost.double() - pipeline.cash).abs() / pipeline.cash
    if float(gap.max()) <= CASH_TOLERANCE:
        return []
    row = observation.bar.reshape(-1)[int(gap.reshape(-1).argmax()) // (env.envs // observation.bar.shape[1])]
    bar = pipeline.bar(int(row))
    message = (
        f"The environment's first purchase, decided at {bar}, changed an account by {float(gap.max()):.2%} beyond its "
        "costs: it did not fill at the next close."
    )
    return [Finding(CHECK, "fail", "the environment's fill price", message, bar, float(gap.max()))]

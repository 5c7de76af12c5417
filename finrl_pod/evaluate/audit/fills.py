"""Fills: a decision that saw a closing price must not trade at it."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline
from finrl_pod.evaluate.audit.rollout import random_actions
from finrl_pod.evaluate.simulate import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor, Panel, Tensor

CHECK = "fills"
TOLERANCE = 1e-6  # of a price
MONEY = 1e-5  # of an account that counts in float32
SPAN = 120  # bars on which the engine and the environment are tried


def fills(pipeline: Pipeline) -> list[Finding]:
    """The market's table of fills, the engine that books them, and the environment: each at the bar after."""
    panel = pipeline.prepare(pipeline.panel)
    market = pipeline.build(panel)
    found = [*_table(pipeline, panel, market), *_engine(pipeline, panel, market), *_environment(pipeline, panel)]
    if found:
        return found
    price = "open" if panel.open is not None else "close"
    text = f"A decision fills at the next bar's {price}, in the market's table and in all that books by it."
    return [Finding(CHECK, "pass", "fill price", text)]


def _table(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    next_bar = (panel.close if panel.open is None else panel.open)[1:]
    seen, fill = panel.close[:-1], market.fill[:-1].cpu().numpy()
    trades = market.fillable[:-1].cpu().numpy() & panel.tradable[1:]
    with np.errstate(invalid="ignore"):
        wrong = trades & ~(np.abs(fill - next_bar) <= TOLERANCE * next_bar)
        same = wrong & (np.abs(fill - seen) <= TOLERANCE * seen)
    if not wrong.any():
        return []
    t = int(wrong.any(1).argmax())
    n = int(wrong[t].argmax())
    bar, symbol = pipeline.bar(t), panel.symbols[n]
    how = "at the very close that it was made on" if same[t, n] else "at a price that is not the next bar's"
    message = f"The decision of {bar} on {symbol} fills {how} ({fill[t, n]:g}); the next bar has {next_bar[t, n]:g}."
    return [Finding(CHECK, "fail", "the market's fill price", message, bar, float(wrong.mean()))]


def _engine(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    """The price that the backtest's engine paid, from what a purchase cost."""
    first = max(pipeline.settled, 0)
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
        if abs(paid - next_bar[t + 1, n]) > TOLERANCE * paid and market.fill_rule != "same_close":
            bar = pipeline.bar(t)
            message = f"The backtest paid {paid:g} for {panel.symbols[n]} decided at {bar}, not {next_bar[t + 1, n]:g}."
            return [Finding(CHECK, "fail", "the backtest's engine", message, bar)]
    return []


def _environment(pipeline: Pipeline, panel: Panel) -> list[Finding]:
    """On closes alone a first purchase, marked at the bar of its fill, takes nothing but its costs from an account."""
    if pipeline.make_env is None:
        return []
    closes = dataclasses.replace(panel, open=None)
    try:
        market = pipeline.build(closes)
    except FeatureError:
        return []  # features of open prices: the environment's fills cannot be told from its marks
    first = max(pipeline.settled, market.first)
    env = pipeline.make_env(market, first, min(first + SPAN, market.steps - 1))
    observation = env.reset(0)
    stream = random.generator(0, 0, "audit purchases")
    outcome = env.step(random_actions(env, stream, torch.rand))
    gap = (outcome.equity.double() + outcome.cost.double() - pipeline.cash).abs() / pipeline.cash
    if float(gap.max()) <= MONEY:
        return []
    day = observation.day.reshape(-1)[int(gap.reshape(-1).argmax()) // (env.envs // observation.day.shape[1])]
    bar = pipeline.bar(int(day))
    message = (
        f"The environment's first purchase, decided at {bar}, changed an account by {float(gap.max()):.2%} beyond its "
        "costs when it filled: it did not fill at the next close."
    )
    return [Finding(CHECK, "fail", "the environment's fill price", message, bar, float(gap.max()))]

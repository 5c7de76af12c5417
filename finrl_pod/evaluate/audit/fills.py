"""Check fills: a decision that observed a closing price must neither trade at that price nor be rewarded from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.data.blocks import over_rows
from finrl_pod.data.panel import cut
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, random_actions
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import VecEnv
from finrl_pod.types import Bools, EnvStep, Floats, MarketTensor, Observation, Panel, Tensor

CHECK = "fills"
PRICE_TOLERANCE = 1e-6  # relative
CASH_TOLERANCE = 1e-5  # relative; environments may keep accounts in float32
SPAN = 250  # bars on which the backtest and the environment are checked
HISTORY = 50  # bars around them, beside those that features look back
STEPS = 60  # of the environment
MIN_REWARDS = 50  # fewer show no correlation
REWARD_CORRELATION = 0.8  # with the return before the fill, above which a reward is taken from it


def check_fills(pipeline: Pipeline) -> list[Finding]:
    """Require that fill prices of the market, the backtest and the environment trade at the bar after the decision."""
    panel, market = pipeline.whole
    findings = [
        *_check_market(pipeline, panel, market),
        *_check_backtest(pipeline, panel, market),
        *_check_environment(pipeline, panel, market),
    ]
    if findings:
        return findings
    price = "open" if panel.open is not None else "close"
    message = f"Decisions fill at the {price} of the next bar in the market, the backtest and the environment."
    return [Finding(CHECK, "pass", "fill price", message)]


def _check_market(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    next_bar = (panel.close if panel.open is None else panel.open)[1:]
    fill = market.fill[:-1].cpu().numpy()
    fillable = market.fillable[:-1].cpu().numpy()

    def off(fill: Floats, prices: Floats) -> Bools:
        with np.errstate(invalid="ignore"):
            wrong: Bools = ~(np.abs(fill - prices) <= PRICE_TOLERANCE * prices)
        return wrong

    wrong = over_rows(off, fill, next_bar) & fillable & panel.investable[1:]
    if not wrong.any():
        return []
    t = int(wrong.any(1).argmax())
    n = int(wrong[t].argmax())
    bar = pipeline.bar(t)
    symbol = panel.symbols[n]
    is_observed = not off(fill[t, n], panel.close[t, n])
    circumstance = "at the close that it observed" if is_observed else "at another price"
    message = (
        f"The decision at {bar} on {symbol} fills {circumstance} ({fill[t, n]:g}); the next bar has {next_bar[t, n]:g}."
    )
    return [Finding(CHECK, "fail", "the market's fill price", message, bar, float(wrong.mean()))]


def _check_backtest(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    """Trade to random weights at every bar and hold each equity against one computed from the next bars' prices."""
    if market.fill_rule == "same_close":
        return []  # stated, and reported by the check of the market
    first = pipeline.out_of_sample
    last = min(first + SPAN, len(panel.times) - 1)
    generator = random.generator(0, 0, "audit purchases")
    tradable = market.tradable.cpu()

    def decide(t: int, _cash: Tensor, shares: Tensor) -> Tensor:
        raw_weights = torch.rand(shares.shape, generator=generator, dtype=torch.float64) * tradable[t]
        return raw_weights / (1 + raw_weights.sum(-1, keepdim=True))

    ledger = simulate(market, decide, first, last, ExecutionRules(cost_rate=0.0), pipeline.cash)
    equity = ledger.equity[:, 0].cpu().numpy()
    weights = ledger.weights[:, 0].cpu().numpy()
    close = market.close[first : last + 1].double().cpu().numpy()
    next_bar = panel.close if panel.open is None else panel.open
    fill = np.where(panel.investable, next_bar, np.nan)[first + 1 : last + 1]
    fill = np.where(np.isfinite(fill), fill, close[:-1])  # where nothing can fill, at the last close
    shares = weights * equity[:, None] / close
    dividends = np.zeros_like(close) if market.dividends is None else market.dividends[first : last + 1].cpu().numpy()
    equity_before = equity[:-1] + (shares[:-1] * (fill - close[:-1] + dividends[:-1])).sum(1)
    expected_equity = equity_before + (shares[1:] * (close[1:] - fill)).sum(1)
    wrong = np.abs(equity[1:] - expected_equity) > PRICE_TOLERANCE * equity[1:]
    if not wrong.any():
        return []
    t = first + int(wrong.argmax())
    bar = pipeline.bar(t)
    gap = float(equity[t + 1 - first] / expected_equity[t - first] - 1)
    message = (
        f"The backtest's account after the decision at {bar} is off by {gap:+.2%} from trading at the next bar's "
        f"prices ({int(wrong.sum())} of {len(wrong)} bars)."
    )
    return [Finding(CHECK, "fail", "the backtest's engine", message, bar, abs(gap))]


@one_thread()
def _check_environment(pipeline: Pipeline, panel: Panel, whole_market: MarketTensor) -> list[Finding]:
    """On closes only, compare equity and reward of every step with the holdings that the environment shows.

    A fill at the close of the bar that a step reaches changes the account only by its costs: the equity of the step is
    the value of the holdings before it. The reward covers the bar after that. Steps with debt, shorts or holdings that
    are delisted are left out, as these have further costs.
    """
    if pipeline.make_env is None:
        return []
    start = max(pipeline.out_of_sample - whole_market.first - HISTORY, 0)
    stop = min(pipeline.out_of_sample + SPAN + HISTORY, len(panel.times))
    closes = dataclasses.replace(cut(panel, start, stop), open=None)
    try:
        market = pipeline.build(closes)
    except FeatureError:
        return []  # features need opening prices: fills and marks cannot be separated
    first = max(pipeline.out_of_sample - start, market.first)
    env = pipeline.make_env(market, first, min(first + SPAN, market.steps - 1))
    observation = env.reset(0)
    equity = torch.full((env.members, env.envs), pipeline.cash, dtype=torch.float64)
    if not isinstance(observation, Observation):
        return []
    generator = random.generator(0, 0, "audit purchases")
    steps: list[_Step] = []
    for _ in range(STEPS):
        outcome = env.step(random_actions(env, generator, torch.rand))
        step = _step_of(market, env, observation, outcome)
        equity_after = outcome.equity.double()
        gap = (equity_after + outcome.cost.double() - equity * step.early_growth.exp()).abs() / equity
        gap = torch.where(step.plain, gap, 0.0)
        steps.append(step)
        if (largest := float(gap.max())) > CASH_TOLERANCE:
            bar = pipeline.bar(start + int(step.bar.reshape(-1)[int(gap.reshape(-1).argmax())]))
            message = (
                f"An account that decided at {bar} changed by {largest:.2%} beyond its costs: the environment did not "
                "fill at the next close."
            )
            return [Finding(CHECK, "fail", "the environment's fill price", message, bar, largest)]
        equity = torch.where(outcome.terminated | outcome.truncated, pipeline.cash, equity_after)
        observation = outcome.observation
    return _check_rewards(pipeline, steps, start)


def _check_rewards(pipeline: Pipeline, steps: Sequence[_Step], start: int) -> list[Finding]:
    """Rewards must follow the growth between two fills rather than that from the observed close to the first fill.

    start: bar of the panel at bar 0 of the steps.
    """
    is_plain = torch.stack([step.plain for step in steps]).numpy()
    reward, growth, early_growth, chosen_growth = (
        np.stack([getattr(step, name).numpy() for step in steps])[is_plain]
        for name in ("reward", "growth", "early_growth", "chosen_growth")
    )
    if len(reward) < MIN_REWARDS or not reward.std():
        return []
    right, *wrong = (
        float(np.corrcoef(reward, x)[0, 1]) if x.std() else 0.0 for x in (growth, early_growth, chosen_growth)
    )
    if max(wrong) <= max(right, REWARD_CORRELATION):
        return []
    message = (
        f"Rewards follow the return from the observed close to the fill (correlation {max(wrong):.3f}) and not that "
        f"after the fill ({right:.3f}): a decision earns a move that it has seen or could not trade."
    )
    bar = pipeline.bar(start + int(steps[0].bar.min()))
    return [Finding(CHECK, "fail", "the environment's reward", message, bar, max(wrong))]


class _Step(NamedTuple):
    """A step of an environment on closes; [P, E] each.

    growth: log growth of the holdings after it over the following bar. early_growth, chosen_growth: log growth over the
    bar of the step, of the holdings before it and of those after it. plain: neither debt, shorts nor delistings matter.
    """

    bar: Tensor
    reward: Tensor
    growth: Tensor
    early_growth: Tensor
    chosen_growth: Tensor
    plain: Tensor


def _step_of(market: MarketTensor, env: VecEnv, observation: Observation, outcome: EnvStep) -> _Step:
    width = 1 + market.shape[1]
    last = len(market.times) - 1
    bar = observation.bar.repeat_interleave(env.envs // observation.bar.shape[1], 1)  # [P, E]
    now, fill_close, following = (market.close[(bar + i).clamp(max=last)].double() for i in range(3))  # [P, E, N]
    dividends_at_fill = dividends_after = torch.zeros_like(now)  # dividends until `reached` and `following`
    if market.dividends is not None:
        dividends_at_fill, dividends_after = (market.dividends[(bar + i).clamp(max=last)].double() for i in range(2))
    holdings, holdings_after = (x.account[..., :width].double() for x in (observation, outcome.final_observation))
    new_holdings = torch.cat([holdings_after[..., :1], holdings_after[..., 1:] / fill_close * now], -1)

    def log_growth(account: Tensor, ratio: Tensor) -> Tensor:
        return torch.log((account[..., 0] + (account[..., 1:] * ratio).sum(-1)) / account.sum(-1))

    delisted = ((holdings[..., 1:] > 0) & market.delisted[bar]).any(-1)
    return _Step(
        bar,
        outcome.reward.double(),
        growth=log_growth(holdings_after, (following + dividends_after) / fill_close),
        early_growth=log_growth(holdings, (fill_close + dividends_at_fill) / now),
        chosen_growth=log_growth(new_holdings, (fill_close + dividends_at_fill) / now),
        plain=(holdings >= 0).all(-1) & (holdings_after >= 0).all(-1) & ~delisted,
    )

"""Check fills: a decision that observed a closing price must neither trade at that price nor be rewarded from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.data.blocks import over_rows
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, random_actions
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.native.threads import one_thread
from finrl_pod.protocols import VecEnv
from finrl_pod.types import Bools, EnvStep, Floats, MarketTensor, Observation, Panel, Tensor

CHECK = "fills"
PRICE_TOLERANCE = 1e-6  # relative
CASH_TOLERANCE = 1e-5  # relative; environments may keep accounts in float32
SPAN = 250  # bars on which the backtest and the environment are checked
STEPS = 60  # of the environment
MIN_REWARDS = 50  # fewer show no correlation
REWARD_CORRELATION = 0.8  # with the return before the fill, above which a reward is taken from it


def check_fills(pipeline: Pipeline) -> list[Finding]:
    """Require that the market's fill prices, the backtest and the environment trade at the bar after the decision."""
    panel = pipeline.prepared(pipeline.panel)
    market = pipeline.build(panel)
    found = [*_check_market(pipeline, panel, market), *_check_backtest(pipeline, panel, market)]
    del market  # that of the environment is built from closes only
    found += _check_environment(pipeline, panel)
    if found:
        return found
    price = "open" if panel.open is not None else "close"
    message = f"Decisions fill at the next bar's {price} in the market, the backtest and the environment."
    return [Finding(CHECK, "pass", "fill price", message)]


def _check_market(pipeline: Pipeline, panel: Panel, market: MarketTensor) -> list[Finding]:
    next_bar = (panel.close if panel.open is None else panel.open)[1:]
    fill, fillable = market.fill[:-1].cpu().numpy(), market.fillable[:-1].cpu().numpy()

    def off(fill: Floats, prices: Floats) -> Bools:
        with np.errstate(invalid="ignore"):
            wrong: Bools = ~(np.abs(fill - prices) <= PRICE_TOLERANCE * prices)
        return wrong

    wrong = over_rows(off, fill, next_bar) & fillable & panel.investable[1:]
    if not wrong.any():
        return []
    t = int(wrong.any(1).argmax())
    n = int(wrong[t].argmax())
    bar, symbol = pipeline.bar(t), panel.symbols[n]
    seen = not off(fill[t, n], panel.close[t, n])
    how = "at the close that it observed" if seen else "at a price other than the next bar's"
    message = f"The decision at {bar} on {symbol} fills {how} ({fill[t, n]:g}); the next bar has {next_bar[t, n]:g}."
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
        wanted = torch.rand(shares.shape, generator=generator, dtype=torch.float64) * tradable[t]
        return wanted / (1 + wanted.sum(-1, keepdim=True))

    ledger = simulate(market, decide, first, last, ExecutionRules(cost_rate=0.0), pipeline.cash)
    equity, weights = ledger.equity[:, 0].cpu().numpy(), ledger.weights[:, 0].cpu().numpy()
    close = market.close[first : last + 1].double().cpu().numpy()
    next_bar = panel.close if panel.open is None else panel.open
    fill = np.where(panel.investable, next_bar, np.nan)[first + 1 : last + 1]
    fill = np.where(np.isfinite(fill), fill, close[:-1])  # where nothing can fill, at the last close
    shares = weights * equity[:, None] / close
    paid = np.zeros_like(close) if market.dividends is None else market.dividends[first : last + 1].cpu().numpy()
    before = equity[:-1] + (shares[:-1] * (fill - close[:-1] + paid[:-1])).sum(1)
    expected = before + (shares[1:] * (close[1:] - fill)).sum(1)
    wrong = np.abs(equity[1:] - expected) > PRICE_TOLERANCE * equity[1:]
    if not wrong.any():
        return []
    t = first + int(wrong.argmax())
    bar, gap = pipeline.bar(t), float(equity[t + 1 - first] / expected[t - first] - 1)
    message = (
        f"The backtest's account after the decision at {bar} is off by {gap:+.2%} from trading at the next bar's "
        f"prices ({int(wrong.sum())} of {len(wrong)} bars)."
    )
    return [Finding(CHECK, "fail", "the backtest's engine", message, bar, abs(gap))]


@one_thread()
def _check_environment(pipeline: Pipeline, panel: Panel) -> list[Finding]:
    """On closes only, hold every step's equity and reward against the holdings that the environment shows.

    A fill at the close of the bar that a step reaches changes the account only by its costs, so the step's equity is
    that of the holdings before it. The reward covers the bar after that. Steps with debt, shorts or holdings that are
    delisted are left out, as these have further costs.
    """
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
    equity = torch.full((env.members, env.envs), pipeline.cash, dtype=torch.float64)
    if not isinstance(observation, Observation):
        return []
    generator = random.generator(0, 0, "audit purchases")
    steps: list[_Step] = []
    for _ in range(STEPS):
        outcome = env.step(random_actions(env, generator, torch.rand))
        step = _step_of(market, env, observation, outcome)
        after = outcome.equity.double()
        gap = (after + outcome.cost.double() - equity * step.early_growth.exp()).abs() / equity
        gap = torch.where(step.plain, gap, 0.0)
        steps.append(step)
        if (largest := float(gap.max())) > CASH_TOLERANCE:
            bar = pipeline.bar(int(step.bar.reshape(-1)[int(gap.reshape(-1).argmax())]))
            message = (
                f"An account that decided at {bar} changed by {largest:.2%} beyond its costs: the environment did not "
                "fill at the next close."
            )
            return [Finding(CHECK, "fail", "the environment's fill price", message, bar, largest)]
        equity = torch.where(outcome.terminated | outcome.truncated, pipeline.cash, after)
        observation = outcome.observation
    return _check_rewards(pipeline, steps)


def _check_rewards(pipeline: Pipeline, steps: Sequence[_Step]) -> list[Finding]:
    """Rewards must follow the growth between two fills rather than that from the observed close to the first fill."""
    plain = torch.stack([step.plain for step in steps]).numpy()
    reward, own, early, chosen = (
        np.stack([getattr(step, name).numpy() for step in steps])[plain]
        for name in ("reward", "growth", "early_growth", "chosen_growth")
    )
    if len(reward) < MIN_REWARDS or not reward.std():
        return []
    right, *wrong = (float(np.corrcoef(reward, x)[0, 1]) if x.std() else 0.0 for x in (own, early, chosen))
    if max(wrong) <= max(right, REWARD_CORRELATION):
        return []
    message = (
        f"Rewards follow the return from the observed close to the fill (correlation {max(wrong):.3f}) and not that "
        f"after the fill ({right:.3f}): a decision earns a move that it has seen or could not trade."
    )
    return [
        Finding(CHECK, "fail", "the environment's reward", message, pipeline.bar(int(steps[0].bar.min())), max(wrong))
    ]


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


def _step_of(market: MarketTensor, env: VecEnv, before: Observation, outcome: EnvStep) -> _Step:
    width, last = 1 + market.shape[1], len(market.times) - 1
    bar = before.bar.repeat_interleave(env.envs // before.bar.shape[1], 1)  # [P, E]
    now, reached, following = (market.close[(bar + i).clamp(max=last)].double() for i in range(3))  # [P, E, N]
    soon = later = torch.zeros_like(now)  # dividends until `reached` and `following`
    if market.dividends is not None:
        soon, later = (market.dividends[(bar + i).clamp(max=last)].double() for i in range(2))
    own, after = (x.account[..., :width].double() for x in (before, outcome.final_observation))
    chosen = torch.cat([after[..., :1], after[..., 1:] / reached * now], -1)

    def log_growth(account: Tensor, ratio: Tensor) -> Tensor:
        return torch.log((account[..., 0] + (account[..., 1:] * ratio).sum(-1)) / account.sum(-1))

    delisted = ((own[..., 1:] > 0) & market.delisted[bar]).any(-1)
    return _Step(
        bar,
        outcome.reward.double(),
        growth=log_growth(after, (following + later) / reached),
        early_growth=log_growth(own, (reached + soon) / now),
        chosen_growth=log_growth(chosen, (reached + soon) / now),
        plain=(own >= 0).all(-1) & (after >= 0).all(-1) & ~delisted,
    )

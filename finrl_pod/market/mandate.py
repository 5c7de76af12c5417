"""Investment mandates: from the scores of an agent to bounded, slowly traded target weights.

A mandate starts from a base portfolio, allows a bounded tilt of every weight, applies limits on positions and risk, and
trades a share of the remaining gap at each decision. Action 0 holds the base. The functions are pure, batched
over leading dimensions, and differentiable almost everywhere; environments use float32, strategies float64.

    u = tilt * tanh(scores)                                       scores [.., N]
    w = B * b exp(u) / sum(b exp(u))                              over tradable assets; b: base weights
    w = min(max_weight, c w), c such that the sum is kept         what cannot be placed is cash; groups alike
    w = min(1, volatility_target / sigma) w
    v = v + trade_speed (w - v)                                   v: virtual holdings, drifted with prices

With `group_neutral` the sums are over the assets of a group. An account with `max_holdings` or `min_position` holds few
of its virtual holdings, see `weight_limits`: they stay many, so that new names can rise slowly.
B is the leverage limit less the weight of holdings that cannot be traded. The bounded exponential tilt is the
softmax form of parametric portfolio policies (Brandt, Santa-Clara and Valkanov 2009); partial trading towards an aim
portfolio is optimal under quadratic costs (Garleanu and Pedersen 2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from finrl_pod.errors import ConfigError
from finrl_pod.market.weight_limits import HELD, NO_LIMIT, GroupLimits, NameLimits, few_names, limit_weights
from finrl_pod.settings.run import MandateConfig
from finrl_pod.tables import in_dtype, once, rows_table
from finrl_pod.types import Bools, MarketTensor, Tensor, Times

TILT_SCALE = 2.0  # actions in [-1, 1] times this are scores: tanh(2) is 0.96 of the largest tilt
LARGEST_SCORE = 20.0  # its tanh is 1
TILT_TOLERANCE = 1e-9  # rounding error of the logarithm of a ratio of weights
RISK_BARS = 252  # trailing returns from which tracking error and volatility are estimated
MIN_FREED = 0.01  # of equity that few names invest between decisions
BUDGET_MONTHS = 12  # the turnover budget holds at most the allowance of one month


class MandateBar(NamedTuple):
    """What a mandate needs of a decision bar, besides the accounts.

    base: [.., N] weights that add up to at most 1, 0 for untradable assets. tradable: [.., N] bool. decides: [.., 1]
    bool, whether `decide_every` allows a decision. returns: [.., L, N] trailing simple returns, or None. groups: see
    `group_members`.
    """

    base: Tensor
    tradable: Tensor
    decides: Tensor
    returns: Tensor | None = None
    groups: Tensor | None = None


class Decision(NamedTuple):
    """Outcome of a decision.

    weights: [.., N] target weights of equity, actual ones for untradable assets. trades: [.., 1] bool, False where the
    holdings are kept. budget: [..] turnover budget left, or None. virtual: [.., N] virtual holdings after the decision;
    the target weights are these, or few of them.
    """

    weights: Tensor
    trades: Tensor
    budget: Tensor | None
    virtual: Tensor


def active_mandate(config: MandateConfig | None) -> MandateConfig | None:
    """The mandate, or None if it is absent or its base is "none": actions are then unconstrained."""
    return None if config is None or config.base == "none" else config


def limits_names(config: MandateConfig) -> bool:
    """Whether accounts hold few of their virtual holdings."""
    return config.max_holdings > 0 or config.min_position > 0


def without_name_limits(config: MandateConfig) -> MandateConfig:
    """The mandate for any number of names: of accounts that stand for a base, and of those that must be linear."""
    return replace(config, max_holdings=0, min_position=0.0)


def uses_groups(config: MandateConfig) -> bool:
    """Whether a rule depends on [groups]."""
    return config.group_neutral or config.max_group_weight < 1


def most_names(config: MandateConfig, assets: int) -> int:
    """Largest number of assets of a number of them that an account may hold, without leverage."""
    limits = [assets]
    if config.max_holdings:
        limits.append(config.max_holdings)
    if config.min_position:
        limits.append(int(1 / config.min_position + 1e-6))
    return min(limits)


def group_members(config: MandateConfig, symbols: Sequence[str]) -> Tensor | None:
    """[G + 1, N] float64, 1 for the assets of a group; the last row has the others. None if no rule needs groups."""
    if not uses_groups(config):
        return None
    rows = [[float(symbol in group.symbols) for symbol in symbols] for group in config.groups]
    members = torch.tensor(rows, dtype=torch.float64).view(len(rows), len(symbols))
    return torch.cat([members, 1 - members.sum(0, keepdim=True)])


def largest_weight(config: MandateConfig, assets: int) -> float:
    """Upper bound of a desired weight on a number of tradable assets, with leverage 1.

    Equal weights have the bound e^2t / (e^2t + N - 1) of the tilt t; another base may put everything into one asset.
    """
    if config.base != "equal_weight":
        return config.max_weight
    assets = most_names(config, assets)
    return min(config.max_weight, 1 / (1 + (assets - 1) * math.exp(-2 * config.tilt)))


# ---------------------------------------------------------------------- desired weights


def desired_weights(
    scores: Tensor, bar: MandateBar, held_weights: Tensor, config: MandateConfig, leverage: float, bars_per_year: float
) -> Tensor:
    """Desired weights [.., N] of scores [.., N]: tilted base within the limits of the mandate.

    held_weights: [.., N] weights.
    """
    target = tilted(scores, bar, held_weights, config, leverage)
    return _at_volatility(target, bar, config, bars_per_year)


def entry_weights(
    bar: MandateBar, held_weights: Tensor, config: MandateConfig, leverage: float, bars_per_year: float
) -> Tensor:
    """Weights [.., N] that an account in cash buys at once: the base within the limits of the mandate."""
    weights = bar.base * _investable(bar, held_weights, leverage)
    weights = limit_weights(weights, config.max_weight, _group_limits(bar, held_weights, config))
    return _at_volatility(weights, bar, config, bars_per_year)


def tilted(scores: Tensor, bar: MandateBar, held_weights: Tensor, config: MandateConfig, leverage: float) -> Tensor:
    """Tilted base weights [.., N] within the limits of assets and groups; a base weight of 0 stays 0.

    Relative to the base, two weights differ by a factor of at most exp(2 tilt) before the limits.
    """
    mass = bar.base * torch.exp(config.tilt * torch.tanh(scores))
    if bar.groups is not None and config.group_neutral:
        total = mass @ bar.groups.T @ bar.groups
        share = bar.base @ bar.groups.T @ bar.groups
    else:
        total = mass.sum(-1, keepdim=True)
        share = bar.base.sum(-1, keepdim=True)
    investable_share = share * _investable(bar, held_weights, leverage)
    weights = mass * (investable_share / total.clamp(min=torch.finfo(mass.dtype).tiny))
    return limit_weights(weights, config.max_weight, _group_limits(bar, held_weights, config))


def scores_of(weights: Tensor, bar: MandateBar, config: MandateConfig) -> Tensor | None:
    """Scores [.., N] for which `tilted` gives weights in proportion to these [.., N]; None if no scores do.

    Averages of tilted weights of one bar are always reached: their ratios to the base differ no more than its own.
    """
    if not bool(torch.isfinite(weights).all()):
        return None
    is_tilted = (bar.base > 0) & (weights > 0)
    if config.tilt == 0 or not bool(is_tilted.any(-1).all()):
        return torch.zeros_like(weights)
    ratio = torch.where(is_tilted, weights, 1.0) / torch.where(is_tilted, bar.base, 1.0)
    tilt = ratio.log()
    highest = torch.where(is_tilted, tilt, -torch.inf).amax(-1, keepdim=True)
    lowest = torch.where(is_tilted, tilt, torch.inf).amin(-1, keepdim=True)
    if bool((highest - lowest > 2 * config.tilt + TILT_TOLERANCE).any()):
        return None
    share = ((tilt - (highest + lowest) / 2) / config.tilt).clamp(-1, 1)
    return torch.where(is_tilted, share.atanh().clamp(-LARGEST_SCORE, LARGEST_SCORE), 0.0)


def _investable(bar: MandateBar, held_weights: Tensor, leverage: float) -> Tensor:
    """[.., 1]: the leverage limit less the weight of holdings that cannot be traded."""
    blocked_weights = torch.where(bar.tradable, 0.0, held_weights).sum(-1, keepdim=True)
    return (leverage - blocked_weights).clamp(min=0)


def _group_limits(bar: MandateBar, held_weights: Tensor, config: MandateConfig) -> GroupLimits | None:
    """Room of each group: its limit less its holdings that cannot be traded; of the assets of none: no limit.

    Virtual holdings of few names are not limited: a group would lose its names instead of having few.
    """
    if bar.groups is None:
        return None
    blocked_weights = torch.where(bar.tradable, 0.0, held_weights) @ bar.groups.T
    room = torch.full_like(blocked_weights, NO_LIMIT)
    if config.max_group_weight < 1 and not limits_names(config):
        room[..., :-1] = (config.max_group_weight - blocked_weights[..., :-1]).clamp(min=0)
    return GroupLimits(bar.groups, room)


def _at_volatility(weights: Tensor, bar: MandateBar, config: MandateConfig, bars_per_year: float) -> Tensor:
    """Weights [.., N] scaled down to the volatility target, estimated from trailing returns (divisor L)."""
    limit = config.volatility_target
    if bar.returns is None or not limit:
        return weights
    path = (bar.returns @ weights.unsqueeze(-1)).squeeze(-1)
    variance = path.var(-1, correction=0, keepdim=True) * bars_per_year
    binding = variance > limit**2  # elsewhere the factor is 1: the square root is never differentiated at 0
    return weights * torch.where(binding, limit / torch.where(binding, variance, 1.0).sqrt(), 1.0)


# ---------------------------------------------------------------------- virtual holdings


def trade_towards(
    target: Tensor,
    entry: Tensor,
    bar: MandateBar,
    held_weights: Tensor,
    virtual: Tensor,
    budget: Tensor | None,
    config: MandateConfig,
) -> Decision:
    """Move the virtual holdings [.., N] towards the desired weights [.., N].

    entry: [.., N], what an account in cash holds at once. held_weights: [.., N] weights of the actual holdings. budget:
    [..] of one-sided turnover (half the sum of absolute changes), or None without a limit.
    Holdings that cannot be traded keep their weight. Money freed by a delisting is spread over the others in
    proportion.
    """
    zero = torch.zeros_like(virtual)
    is_new = ~(held_weights != 0).any(-1, keepdim=True)
    blocked_weights = torch.where(bar.tradable, zero, held_weights)
    previous_weights = torch.where(bar.tradable, virtual, zero)
    mass = virtual.sum(-1, keepdim=True)
    left = previous_weights.sum(-1, keepdim=True)
    available = (mass - blocked_weights.sum(-1, keepdim=True)).clamp(min=0)
    has_freed_money = ((virtual != 0) & ~bar.tradable & (held_weights == 0)).any(-1, keepdim=True)
    has_left = left > 0
    spread = previous_weights * (available / torch.where(has_left, left, 1.0))
    previous_weights = torch.where(is_new | ~has_left, torch.where(bar.tradable, entry, zero), spread)
    change = torch.where(bar.tradable & bar.decides, config.trade_speed * (target - previous_weights), zero)
    if budget is not None:
        budget = torch.where(is_new[..., 0], initial_budget(config), budget)
        turnover = change.abs().sum(-1) / 2
        factor = (budget / turnover.clamp(min=torch.finfo(turnover.dtype).tiny)).clamp(max=1)
        change = change * factor.unsqueeze(-1)
        budget = (budget - turnover * factor).clamp(min=0)
    trades = bar.decides | has_freed_money | is_new
    weights = previous_weights + change
    if config.max_group_weight < 1 and not limits_names(config):  # prices may have carried a group above its limit
        within_limits = limit_weights(weights, config.max_weight, _group_limits(bar, held_weights, config))
        weights = torch.where(trades, within_limits, weights)
    weights = weights + blocked_weights
    return Decision(weights, trades, budget, weights)


def decide(
    target: Tensor,
    bar: MandateBar,
    held_weights: Tensor,
    virtual: Tensor,
    budget: Tensor | None,
    config: MandateConfig,
    leverage: float,
    bars_per_year: float,
) -> Decision:
    """Decision of desired weights [.., N]; other arguments as for `trade_towards`."""
    entry = entry_weights(bar, held_weights, config, leverage, bars_per_year)
    decision = trade_towards(target, entry, bar, held_weights, virtual, budget, config)
    if not limits_names(config):
        return decision
    blocked_weights = torch.where(bar.tradable, 0.0, held_weights)
    is_blocked = blocked_weights > HELD
    max_names = (config.max_holdings or held_weights.shape[-1]) - is_blocked.sum(-1, keepdim=True)
    groups = _group_limits(bar, held_weights, without_name_limits(config))
    limits = NameLimits(max_names.to(target.dtype), config.min_position, config.max_weight, groups)
    virtual_weights = torch.where(bar.tradable, decision.virtual, 0.0)
    weights = few_names(virtual_weights, held_weights, limits)
    if needs_returns(config):  # few names vary more than many
        scaled_sum = _at_volatility(weights, bar, config, bars_per_year).sum(-1, keepdim=True)
        share = scaled_sum / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        weights = few_names(virtual_weights * share, held_weights, limits)
    weights = weights + blocked_weights
    # Between decisions an asset that is not held may stop trading: this frees no money.
    has_cash = held_weights.sum(-1, keepdim=True) < weights.sum(-1, keepdim=True) - MIN_FREED
    return decision._replace(weights=weights, trades=bar.decides | (decision.trades & has_cash))


def drift(weights: Tensor, price_relatives: Tensor) -> Tensor:
    """Weights [.., N] after prices moved; price_relatives: [.., N], new close / old close. Cash earns nothing."""
    values = weights * price_relatives
    return values / (1 + (values - weights).sum(-1, keepdim=True)).clamp(min=1e-9)


def initial_budget(config: MandateConfig) -> float:
    """Turnover budget of a new account: the allowance of one month. It is also the largest budget."""
    return config.max_turnover / BUDGET_MONTHS


def replenish_budget(budget: Tensor, bars: int, config: MandateConfig, bars_per_year: float) -> Tensor:
    """Turnover budget [..] after some bars."""
    return (budget + bars * config.max_turnover / bars_per_year).clamp(max=initial_budget(config))


# ---------------------------------------------------------------------- tables of a market


class MandateTable:
    """A mandate on a market: base weights, decision bars and trailing returns of every bar, in one dtype.

    bars_per_year: number of bars per year, for annualised limits.
    """

    def __init__(self, market: MarketTensor, config: MandateConfig, bars_per_year: float, dtype: torch.dtype) -> None:
        """Raises ConfigError if the base needs weights that the market lacks."""
        self.config = config
        self.bars_per_year = bars_per_year
        base = market.base
        if base is None:
            if config.base != "equal_weight":
                raise ConfigError(
                    f"mandate.base = {config.base!r} needs a market with its weights; build it with "
                    "finrl_pod_strategies.base_portfolios.with_base"
                )
            tradable = market.tradable
            self.base = once(
                tradable,
                ("equal base", dtype),
                lambda: rows_table(lambda rows: equal_base(tradable[rows]), market.close, dtype),
            )
        else:
            self.base = in_dtype(base, dtype)
        self.tradable = market.tradable
        groups = group_members(config, market.symbols)
        self._groups = None if groups is None else groups.to(self.base)
        self.decides = torch.from_numpy(decision_bars(market.times, config.decide_every)).to(self.base.device)
        self._returns = trailing_returns(market, dtype) if needs_returns(config) else None

    def at(self, t: int | Tensor) -> MandateBar:
        """The bar t, or bars t [P, G] with a dimension for the accounts that share one."""
        returns = None if self._returns is None else self._returns[t]
        if isinstance(t, int):
            return MandateBar(self.base[t], self.tradable[t], self.decides[t].view(1), returns, self._groups)
        return MandateBar(
            self.base[t].unsqueeze(-2),
            self.tradable[t].unsqueeze(-2),
            self.decides[t][..., None, None],
            None if returns is None else returns.unsqueeze(-3),
            self._groups,
        )

    def decide(
        self,
        t: int | Tensor,
        scores: Tensor,
        held_weights: Tensor,
        virtual: Tensor,
        budget: Tensor | None,
        leverage: float,
    ) -> Decision:
        """Decision at bar t, or bars t [P, G], of scores [.., N]; other arguments as for `trade_towards`."""
        bar = self.at(t)
        rules = (self.config, leverage, self.bars_per_year)
        target = desired_weights(scores, bar, held_weights, *rules)
        return decide(target, bar, held_weights, virtual, budget, *rules)


def needs_returns(config: MandateConfig) -> bool:
    """Whether a mandate estimates risk from trailing returns."""
    return config.volatility_target > 0


def equal_base(tradable: Tensor) -> Tensor:
    """Equal weights [.., N] float64 of the tradable assets [.., N]; zero where none is."""
    share = 1 / tradable.sum(-1, keepdim=True).clamp(min=1).double()
    return torch.where(tradable, share, 0.0)


def trailing_returns(market: MarketTensor, dtype: torch.dtype) -> Tensor:
    """Simple returns [T, L, N] of the `RISK_BARS` bars up to each bar, as a view; 0 before the first bar."""
    returns = bar_returns(market.close.double(), market.tradable).to(dtype)
    padded_returns = torch.cat([returns.new_zeros(RISK_BARS - 1, returns.shape[1]), returns])
    return padded_returns.unfold(0, RISK_BARS, 1).transpose(1, 2)


def bar_returns(close: Tensor, tradable: Tensor) -> Tensor:
    """Simple returns [T, N] of closes [T, N]; 0 where an asset is not tradable at both bars, and at the first bar."""
    tradable_twice = tradable[1:] & tradable[:-1]
    returns = torch.zeros_like(close)
    returns[1:] = torch.where(tradable_twice, close[1:] / torch.where(tradable_twice, close[:-1], 1.0) - 1, 0.0)
    return returns


def decision_bars(times: Times, interval: int | str) -> Bools:
    """[T] bool: bars at which a mandate decides.

    interval: a number of bars (of business days where bars are daily or longer), or the first bar of each "week" or
    "month". Derived from the dates alone, so that any part of a series gives the same bars, except that its first bar
    decides.
    """
    if interval == 1:
        return np.ones(len(times), dtype=bool)
    number = _period_numbers(times, interval)
    result: Bools = np.ones(len(times), dtype=bool)
    result[1:] = number[1:] != number[:-1]
    return result


def _period_numbers(times: Times, interval: int | str) -> np.ndarray:
    days = times.astype("datetime64[D]")
    if interval == "month":
        return days.astype("datetime64[M]").astype(np.int64)
    if interval == "week":
        return (days.astype(np.int64) + 3) // 7  # 1970-01-01 was a Thursday: weeks start on Monday
    step = np.diff(times.astype("datetime64[s]").astype(np.int64))
    usual_seconds = int(np.median(step)) if len(step) else 86_400
    if usual_seconds >= 86_400:
        return np.busday_count(np.datetime64("1970-01-01"), days) // int(interval)
    return times.astype("datetime64[s]").astype(np.int64) // usual_seconds // int(interval)


class MandateAccounts:
    """Virtual holdings of B accounts that are simulated bar after bar on one market."""

    def __init__(self, table: MandateTable, leverage: float) -> None:
        self._table = table
        self._leverage = leverage
        self._state: VirtualHoldings | None = None

    def state(self, held_weights: Tensor, close: Tensor) -> VirtualHoldings:
        """Virtual holdings and turnover budget at the bar after the last decision; arguments as for `decide`."""
        table = self._table
        config = self._table.config
        state = self._state or VirtualHoldings.initial(held_weights, close, config)
        return state.moved(close, 1, config, table.bars_per_year)

    def decide(self, t: int, scores: Tensor, held_weights: Tensor, close: Tensor) -> Tensor | None:
        """Target weights [B, N] at bar t of scores [B, N], None if no account trades.

        held_weights: [B, N] weights; close: [N]. Must be called for each bar in turn.
        """
        state = self.state(held_weights, close)
        decision = self._table.decide(t, scores, held_weights, state.weights, state.budget, self._leverage)
        self._state = VirtualHoldings(decision.virtual, close, decision.budget)
        return torch.where(decision.trades, decision.weights, held_weights) if bool(decision.trades.any()) else None


class VirtualHoldings(NamedTuple):
    """State of a mandate between two decisions: weights [.., N] at closes [N], and the turnover budget [..] or None."""

    weights: Tensor
    close: Tensor
    budget: Tensor | None

    @classmethod
    def initial(cls, held_weights: Tensor, close: Tensor, config: MandateConfig) -> VirtualHoldings:
        """The state of accounts whose past is unknown: the actual holdings [.., N], and a full budget."""
        budget = torch.full_like(held_weights[..., 0], initial_budget(config)) if config.max_turnover else None
        return cls(held_weights, close, budget)

    def moved(self, close: Tensor, bars: int, config: MandateConfig, bars_per_year: float) -> VirtualHoldings:
        """The state at later closes [N], some bars on."""
        budget = None if self.budget is None else replenish_budget(self.budget, bars, config, bars_per_year)
        return VirtualHoldings(drift(self.weights, close / self.close), close, budget)

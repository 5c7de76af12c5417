"""Decisions of trained agents as pure functions of their weights, and the accounts that they control.

Used by the scores of a tournament, backtests and paper trading, outside any environment.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from finrl_pod.data.price_features import turbulent_bars
from finrl_pod.evaluate.backtest import AccountCurves, Ledger, simulate
from finrl_pod.evaluate.metrics import METRIC_NAMES, bars_per_year, summary
from finrl_pod.market.account_extras import AccountTracker
from finrl_pod.market.actions import choice_scores, choices_as_weights, scores_to_weights, trades_as_weights
from finrl_pod.market.mandate import MandateAccounts, MandateTable, active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.memory import release_mapped_pages
from finrl_pod.rl.networks.distributions import distribution_of
from finrl_pod.rl.networks.inputs import make_lookback_encoder, past_of_windows
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import HoldingScores, MarketPolicy, PolicySpec, make_policy
from finrl_pod.rl.optimisation.normalisation import MEAN, VARIANCE, normalised
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Tensor

BARS_AHEAD = 256  # at most, of which a part of the decisions is computed at once
NUMBERS_AHEAD = 2**20  # of the widest tensor of that part


class Actor(Protocol):
    """Decisions of a trained agent as a pure function; backtests and paper accounts run it."""

    spec: PolicySpec

    def action(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Actions [P, K, A, D] without exploration, as the environment takes them.

        features: [P, K, N, F]; account: [P, K, A, 1 + N]; tradable: [P, K, N] bool, None if all assets are. With an
        encoder features [P, K, B, N, F] and tradable [P, K, B, N] of the last B <= L bars, the decision bar last.
        """
        ...


class MeanActor:
    """Acts by the mean of a Gaussian policy, or by its most likely choice."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.policy = make_policy(spec)
        self.encoder = make_lookback_encoder(spec)

    def action(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """[P, K, A, D] scores, or choices [P, K, A, 1]."""
        account = _normalised(account, params)
        if self.encoder is not None:
            past = past_of_windows(features, tradable, self.spec.lookback)
            features = self.encoder.join(params, features[:, :, -1], past)
            tradable = None if tradable is None else tradable[:, :, -1]
        mean = self.policy.mean(params, features, account, tradable)
        return distribution_of(self.spec.action).best(mean)

    def market_part(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, ...] | None:
        """What `action_of` needs of the market for K bars: tensors [P, K, ...]; None if only `action` can be used.

        features: [P, K, N, F]; tradable: [P, K, N] bool or None.
        """
        if self.encoder is not None or not isinstance(self.policy, MarketPolicy):
            return None
        if type(self.policy).mean is not MarketPolicy.mean:  # a policy derived from a built-in one
            return None
        return self.policy.market_part(params, features, tradable)

    def action_of(self, params: Params, part: tuple[Tensor, ...], account: Tensor) -> Tensor:
        """`action` on a part of the market."""
        assert isinstance(self.policy, MarketPolicy)
        mean = self.policy.scores(params, part, _normalised(account, params))
        return distribution_of(self.spec.action).best(mean)


def _normalised(account: Tensor, params: Params) -> Tensor:
    """Accounts in the units of agents that were trained on rows normalised by running statistics."""
    if MEAN not in params:
        return account
    return normalised(account, params[MEAN], params[VARIANCE]).to(account.dtype)


class BarActions:
    """Actions of P members of one actor on bar after bar of a market, for A accounts of each.

    What depends on the market alone is computed for many bars at once, for at most `bars_ahead`.
    """

    def __init__(
        self, actor: Actor, params: Params, market: MarketTensor, last: int, starts: Tensor | None = None
    ) -> None:
        """last: last bar. starts: [P] int64, bars of the members at bar 0, if each has its own; else all share one."""
        self._actor = actor
        self._params = params
        self._market = market
        self._last = last
        first_tensor = next(iter(params.values()))
        self._dtype = first_tensor.dtype
        self._members = len(first_tensor)
        self._starts = torch.zeros(1, 1, dtype=torch.int64) if starts is None else starts.unsqueeze(1)
        self._earliest = -int(self._starts.min())
        numbers = market.features[0].numel() + market.shape[1] * max(actor.spec.hidden, default=1)
        self.bars_ahead = max(1, min(BARS_AHEAD, NUMBERS_AHEAD // (self._members * numbers)))
        self._first = 0
        self._parts: list[tuple[Tensor, ...]] = []

    def __call__(self, t: int, accounts: Tensor) -> Tensor:
        """Actions [P, A, D] at bar t of accounts [P, A, own], in units of the environment."""
        accounts = accounts.to(self._dtype).unsqueeze(1)
        if not self._first <= t < self._first + len(self._parts):
            self._compute(t)
        if self._parts:
            assert isinstance(self._actor, MeanActor)
            action = self._actor.action_of(self._params, self._parts[t - self._first], accounts)
        elif self._actor.spec.encoder == "none":
            features, tradable = self._rows(t, t + 1)
            action = self._actor.action(self._params, features, accounts, tradable)
        else:
            features, tradable = self._rows(max(self._earliest, t + 1 - self._actor.spec.lookback), t + 1)
            mask = None if tradable is None else tradable.unsqueeze(1)
            action = self._actor.action(self._params, features.unsqueeze(1), accounts, mask)
        return action.squeeze(1)

    @property
    def has_holding_scores(self) -> bool:
        """Whether `holding_scores` can be used."""
        actor = self._actor
        if not isinstance(actor, MeanActor) or actor.encoder is not None or MEAN in self._params:
            return False
        is_float = self._dtype == torch.float32
        return is_float and isinstance(actor.policy, MarketPolicy) and actor.policy.has_holding_scores

    def holding_scores(self, t: int, stop: int, *, each: bool = False) -> HoldingScores:
        """Scores of the bars t to stop - 1 as functions of the holdings; tensors [K, P, ...], bars first.

        each: one bar after the other, as decisions are made: products for many bars round differently.
        """
        assert isinstance(self._actor, MeanActor)
        assert isinstance(self._actor.policy, MarketPolicy)
        features, mask = self._rows(t, stop)
        step = 1 if each else stop - t
        parts = [
            self._actor.policy.holding_scores(
                self._params, features[:, i : i + step], None if mask is None else mask[:, i : i + step]
            )
            for i in range(0, stop - t, step)
        ]
        release_mapped_pages()  # of the features: accounts of long markets read all of them
        linear = torch.cat([part.linear for part in parts], 1).transpose(0, 1).contiguous()
        codes = [part.code for part in parts if part.code is not None]
        if not codes:
            return HoldingScores(linear)
        code = torch.cat(codes, 1).transpose(0, 1).contiguous()
        return HoldingScores(linear, code, *(None if x is None else x.contiguous() for x in parts[0][2:]))

    def _rows(self, first: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Features [P, K, N, F] of the bars first to stop - 1, and the mask [P, K, N] of tradable assets or None."""
        bars = self._starts + torch.arange(first, stop)  # [1 or P, K]
        tradable = self._market.tradable[bars]
        features = self._market.features[bars].to(self._dtype)
        mask = None if bool(tradable.all()) else tradable.expand(self._members, *tradable.shape[1:])
        return features.expand(self._members, *features.shape[1:]), mask

    def _compute(self, t: int) -> None:
        """Compute the market parts of the bars from t on."""
        if not isinstance(self._actor, MeanActor):
            return
        parts = self._actor.market_part(self._params, *self._rows(t, min(t + self.bars_ahead, self._last + 1)))
        if parts is None:
            return
        release_mapped_pages()  # of the features: accounts of long markets read all of them
        by_bar = (x.transpose(0, 1).contiguous().unsqueeze(2).unbind(0) for x in parts)
        self._parts = list(zip(*by_bar, strict=True))
        self._first = t


class DecisionInputs(NamedTuple):
    """What a policy observes of the market and of P accounts.

    features: [B, N, F] normalised and tradable: [B, N] bool, of the bars up to the decision bar; an actor without an
    encoder uses the last one. holdings: [P, N] weights of equity. extras: [P, X] observed besides
    (`market.account_extras`), or None.
    """

    features: Tensor
    tradable: Tensor
    holdings: Tensor
    extras: Tensor | None = None


@torch.no_grad()
def target_weights(
    actor: Actor, params: Params, inputs: DecisionInputs, equity: Tensor, prices: Tensor, rules: EnvironmentConfig
) -> Tensor:
    """Target weights [P, N] float64 of P members of one actor, each for its own account, no exploration or mandate.

    equity: [P] in currency; prices: [N], closes of the decision bar.
    """
    holdings = inputs.holdings
    tradable = inputs.tradable[-1]
    if rules.kind == "discrete":
        choice = choices(actor, params, inputs, rules)
        return choices_as_weights(choice, holdings, tradable, rules=rules_of(rules))
    scores = _action(actor, params, inputs, _unit(equity, rules)).view(len(holdings), -1).double()
    if rules.kind == "stock_trading":
        return trades_as_weights(
            scores, holdings, tradable, prices, equity, hmax=rules.hmax, leverage=rules.leverage, rules=rules_of(rules)
        )
    return scores_to_weights(scores, tradable, short=rules.short, leverage=rules.leverage)


@torch.no_grad()
def asset_scores(
    actor: Actor, params: Params, inputs: DecisionInputs, rules: EnvironmentConfig, equity: Tensor | None = None
) -> Tensor:
    """Scores [P, N] float64 of P members of one actor: what the mandate or `target_weights` turn into weights.

    equity: [P] in currency, None under a mandate.
    """
    (members, assets) = inputs.holdings.shape
    if rules.kind == "discrete":
        return choice_scores(choices(actor, params, inputs, rules), assets)
    actions = _action(actor, params, inputs, _unit(equity, rules)).view(members, -1)
    return actions[:, -assets:].double()  # a score of cash comes first


@torch.no_grad()
def choices(actor: Actor, params: Params, inputs: DecisionInputs, rules: EnvironmentConfig) -> Tensor:
    """Choices [P] int64 of P members of one actor with discrete actions."""
    assert rules.kind == "discrete"
    return _action(actor, params, inputs).view(len(inputs.holdings))


def _unit(equity: Tensor | None, rules: EnvironmentConfig) -> Tensor | None:
    """[P] scale of observed accounts: stock_trading observes them in units of the starting cash."""
    return equity / rules.cash if equity is not None and rules.kind == "stock_trading" else None


def _action(actor: Actor, params: Params, inputs: DecisionInputs, unit: Tensor | None = None) -> Tensor:
    """Actions of the members, each for its own account. unit: [P], scale of the observed weights of equity, or None."""
    features, tradable, holdings, extras = inputs
    p = len(holdings)
    dtype = next(iter(params.values())).dtype
    account = torch.cat([1 - holdings.sum(-1, keepdim=True), holdings], -1)
    if unit is not None:
        account = account * unit.unsqueeze(-1)
    if extras is not None:
        account = torch.cat([account, extras], -1)
    bars = -1 if actor.spec.encoder == "none" else slice(-actor.spec.lookback, None)
    features = features[bars]
    tradable = tradable[bars]
    rows = features.to(dtype).expand(p, 1, *features.shape)
    mask = None if bool(tradable.all()) else tradable.expand(p, 1, *tradable.shape)
    return actor.action(params, rows, account.to(dtype).view(p, 1, 1, -1), mask)


class SimulateMembers(Protocol):
    """What simulates accounts of members: `run_members`, or a faster function with the same results."""

    def __call__(
        self,
        actor: Actor,
        params: Params,
        market: MarketTensor,
        config: EnvironmentConfig,
        first: int,
        last: int,
        mandate: MandateConfig | None = None,
    ) -> AccountCurves:
        """The accounts; arguments as for `run_members`."""
        ...


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
            scores = asset_scores(actor, params, inputs, config)
            valid.logical_and_(torch.isfinite(scores).all(-1, keepdim=True))
            return accounts.decide(t, torch.where(valid, scores, 0.0), holdings, close[t])
        weights = target_weights(actor, params, inputs, equity, close[t], config)
        valid.logical_and_(torch.isfinite(weights).all(-1, keepdim=True))
        return torch.where(valid, weights, 0.0)

    ledger = simulate(market, decide, first, last, rules, config.cash, batch=members)
    return replace(ledger, equity=torch.where(valid[:, 0], ledger.equity, torch.nan))


def metrics_of(accounts: AccountCurves, market: MarketTensor) -> list[dict[str, float]]:
    """Metrics of each account on a market; all NaN where its equity is not finite."""
    periods_per_year = bars_per_year(market.times)
    columns = (accounts.equity, accounts.turnover, accounts.costs)
    equity, turnover, costs = (x.cpu().numpy() for x in columns)
    risk_free = None if accounts.risk_free is None else accounts.risk_free.cpu().numpy()
    return [
        summary(equity[:, p], turnover[:, p], costs[:, p], periods_per_year, risk_free)
        if np.isfinite(equity[:, p]).all()
        else dict(NO_METRICS)
        for p in range(equity.shape[1])
    ]

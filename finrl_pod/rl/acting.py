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
from finrl_pod.evaluate.backtest import Ledger, simulate
from finrl_pod.evaluate.metrics import METRIC_NAMES, bars_per_year, summary
from finrl_pod.market.account_extras import AccountTracker
from finrl_pod.market.actions import choice_scores, choices_as_weights, scores_to_weights, trades_as_weights
from finrl_pod.market.mandate import MandateAccounts, MandateTable, active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.rl.networks.distributions import distribution_of
from finrl_pod.rl.networks.inputs import make_lookback_encoder, past_of_windows
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.rl.optimisation.normalisation import MEAN, VARIANCE, normalised
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Tensor


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
        if MEAN in params:  # trained on rows normalised by running statistics
            account = normalised(account, params[MEAN], params[VARIANCE]).to(account.dtype)
        if self.encoder is not None:
            past = past_of_windows(features, tradable, self.spec.lookback)
            features = self.encoder.join(params, features[:, :, -1], past)
            tradable = None if tradable is None else tradable[:, :, -1]
        mean = self.policy.mean(params, features, account, tradable)
        return distribution_of(self.spec.action).best(mean)


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

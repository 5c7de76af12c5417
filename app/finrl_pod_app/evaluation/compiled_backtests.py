"""Backtests of trained agents and of the base of their mandate through the compiled step of the environments.

`backtest_recorded` is the definition, and takes whatever the kernels do not cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from finrl_pod_envs.market_env import RUIN
from finrl_pod_envs.member_accounts import EnsembleRollout, record_ensemble
from finrl_pod_envs.rollout import RolledBars
from finrl_pod_strategies.mandate_account import (
    BasePortfolio,
    DecisionRecorder,
    DesiredTilt,
    active_weights,
    allowed_shares,
    unlimited_weights,
)
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.evaluate.backtest import Ledger, attributed_costs, backtest_result
from finrl_pod.evaluate.variations import RecordingStrategy, backtest_recorded
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.mandate import active_mandate, decide, desired_weights
from finrl_pod.market.rules import rules_of
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.rl.acting import Actor, DecisionInputs, MeanActor
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import LINEAR, PolicySpec
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Tensor


class _Ensemble(NamedTuple):
    """Members of a strategy with the mean of their desired weights. shares: [M], weights of the members."""

    groups: Sequence[tuple[Actor, Params, Sequence[int]]]
    shares: Floats
    mandate: MandateConfig


class _Decisions(NamedTuple):
    """K decisions. targets: [K, N], NaN rows where nothing is traded. tilts: only of trained agents."""

    times: np.ndarray
    targets: Floats
    tilts: DesiredTilt | None


def backtest_decisions(
    strategy: Strategy, panel: Panel, period: MarketPeriod, environment: EnvironmentConfig
) -> tuple[BacktestResult, RecordingStrategy]:
    """`backtest_recorded`, in compiled code where that has the rules and the decisions of the strategy.

    environment: rules of the period.
    """
    compiled = _compiled(strategy, period, environment)
    return backtest_recorded(strategy, panel, period) if compiled is None else compiled


@torch.no_grad()
@one_thread()
def _compiled(
    strategy: Strategy, period: MarketPeriod, environment: EnvironmentConfig
) -> tuple[BacktestResult, RecordingStrategy] | None:
    """The backtest in compiled code, or None. What was decided is recorded only if it comes to its end."""
    ensemble = _ensemble_of(strategy, period.market, environment)
    rules = period.rules
    has_own_terms = period.flows is not None or rules.tax_short or rules.tax_long
    if ensemble is None or has_own_terms or rules != rules_of(environment) or period.cash != environment.cash:
        return None
    has_base = period.market.base is not None or ensemble.mandate.base == "equal_weight"
    if environment.turbulence_limit > 0 or ensemble.mandate.max_turnover or not has_base:
        return None
    span = (period.first, period.last)
    rollout = record_ensemble(*ensemble[:2], period.market, environment, *span, ensemble.mandate)
    if rollout is None:
        return None
    recording = RecordingStrategy(strategy)
    bars = []
    for block in rollout.blocks:
        decisions = _decisions(block, rollout, ensemble, period.market, environment.leverage)
        recording.record(decisions.times, decisions.targets)
        bars.append((block._replace(virtual=None, scores=None), decisions.tilts))
    ledger = _ledger([block for block, _ in bars], rollout, period)
    if ledger is None:
        return None
    if isinstance(strategy, DecisionRecorder):
        _record(strategy, bars, period.market)
    return backtest_result(strategy.name, period.market, ledger), recording


def _ensemble_of(strategy: Strategy, market: MarketTensor, environment: EnvironmentConfig) -> _Ensemble | None:
    """The members of trained agents; a member of scores zero for a base portfolio; None for any other strategy."""
    inner = strategy.inner if isinstance(strategy, DecisionRecorder) else strategy
    if type(inner) is BasePortfolio and not inner.feature_names:
        mandate = active_mandate(inner.mandate)
        (_, assets, features) = market.shape
        actor = MeanActor(PolicySpec("linear", assets, features, assets, (), action="tilt"))
        groups = [(actor, {LINEAR: torch.zeros(1, features)}, [0])]
        has_own_leverage = inner.leverage != environment.leverage
        return None if mandate is None or has_own_leverage else _Ensemble(groups, np.ones(1), mandate)
    if type(inner) is not PolicyStrategy or inner.mandate is None or inner.rule != "mean":
        return None
    is_same = inner.rules == environment and inner.normaliser == market.normaliser
    return _Ensemble(inner.groups, inner.ensemble_weights, inner.mandate) if is_same else None


def _decisions(
    block: RolledBars, rollout: EnsembleRollout, ensemble: _Ensemble, market: MarketTensor, leverage: float
) -> _Decisions:
    """What an ensemble desired and decided at the bars of a block, from its scores and the account before them."""
    assert block.accounts is not None
    assert block.scores is not None
    assert block.virtual is not None
    bars = slice(block.first, block.first + len(block.equity))
    times = market.times[bars]
    bar = rollout.table.at(torch.arange(bars.start, bars.stop))
    rules = (ensemble.mandate, leverage, rollout.table.bars_per_year)
    held = block.accounts[..., 1:]  # [K, 1, N]
    scores = block.scores.double()  # [K, M, N]
    shares = torch.from_numpy(rollout.shares)
    target = (shares @ desired_weights(scores, bar, held, *rules)).unsqueeze(1)
    decision = decide(target, bar, held, block.virtual, None, *rules)
    targets = torch.where(decision.trades, decision.weights, torch.nan)[:, 0].numpy()
    weights, base = unlimited_weights(scores, bar, held, *rules[:2])
    tilts = active_weights((shares @ weights).numpy(), base[:, 0].numpy())
    return _Decisions(times, targets, DesiredTilt(times, tilts, allowed_shares(bar, held, *rules).numpy()))


def _ledger(blocks: Sequence[RolledBars], rollout: EnsembleRollout, period: MarketPeriod) -> Ledger | None:
    """The ledger of an account that was rolled out; None if it was ruined or stopped early."""
    (first, last) = (period.first, period.last)
    length = last - first + 1
    if sum(len(block.equity) for block in blocks) < length - 1:
        return None
    start = torch.zeros(1, 1, dtype=torch.float64)
    equity = torch.cat([start, *(block.equity for block in blocks)])
    turnover = torch.cat([start, *(block.turnover for block in blocks)])
    costs = torch.cat([start, *(block.costs for block in blocks)])
    equity[0] = period.cash
    if bool((equity <= RUIN * period.cash).any()):
        return None
    weights = torch.cat([*_held(blocks), blocks[-1].account[None, :, 1:]])  # [L, 1, N]
    venue = rollout.venue
    cost_parts = {}
    if venue.has_cost_models:
        shares = weights * equity.unsqueeze(-1) / period.market.close[first : last + 1].double().unsqueeze(1)
        cost_parts = attributed_costs(venue, first, shares)
    return Ledger(
        first=first,
        last=last,
        equity=equity,
        turnover=turnover,
        costs=costs,
        weights=weights,
        cash=equity[-1] * blocks[-1].account[:, 0],
        shares=weights[-1] * equity[-1] / period.market.close[last].double(),
        cost_parts=cost_parts,
        risk_free=None if venue.risk_free is None else venue.risk_free[first:last],
    )


def _held(blocks: Sequence[RolledBars]) -> Iterator[Tensor]:
    for block in blocks:
        assert block.accounts is not None
        yield block.accounts[..., 1:]


def _record(
    recorder: DecisionRecorder, bars: Sequence[tuple[RolledBars, DesiredTilt | None]], market: MarketTensor
) -> None:
    """Record the desired tilts, and the decisions that begin and end the months of each block."""
    champion = recorder.inner
    assert isinstance(champion, PolicyStrategy)
    for block, tilts in bars:
        assert block.accounts is not None
        assert tilts is not None
        recorder.record_tilts(tilts)
        months = tilts.times.astype("datetime64[M]")
        starts = np.flatnonzero(months[1:] != months[:-1]) + 1
        for i in sorted({0, *starts.tolist(), len(months) - 1}):
            t = block.first + i
            inputs = DecisionInputs(market.features[t : t + 1], market.tradable[t : t + 1], block.accounts[i, :, 1:])
            recorder.record_decision(champion.scored_decision_of(inputs, market.times[t]))

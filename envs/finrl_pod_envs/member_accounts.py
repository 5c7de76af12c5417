"""Accounts of trained agents, all at once, through the compiled step of the portfolio environment in float64.

`run_members` is the definition and takes whatever the kernel does not cover; a property test compares the two. An
environment here is one group: its accounts share the bar, and each belongs to a member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from finrl_pod.evaluate.backtest import AccountCurves
from finrl_pod.market.account_extras import account_extras
from finrl_pod.market.mandate import MandateTable, active_mandate, desired_weights, scores_of
from finrl_pod.market.rewards import RewardState
from finrl_pod.market.venue import Venue
from finrl_pod.native.device import on_device, one_thread
from finrl_pod.rl.acting import Actor, BarActions, run_members
from finrl_pod.rl.networks.layers import Params
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Floats, MarketTensor, Tensor
from finrl_pod_envs.market_env import RUIN, MarketEnv
from finrl_pod_envs.rollout import RolledBars, can_roll_out, roll_out
from finrl_pod_envs.trading_envs import PortfolioEnv

Actions = Callable[[int, Tensor], Tensor | None]  # bar, accounts [B, 1, own] -> actions [B, 1, D]


class EnsembleRollout(NamedTuple):
    """The account of an ensemble in blocks of bars, which end early if no scores give the mean of its members.

    table, venue: mandate and market of the account, in float64. shares: [M], weights of the members in the order of
    the scores.
    """

    table: MandateTable
    venue: Venue
    shares: Floats
    blocks: Iterator[RolledBars]


def simulate_members(
    actor: Actor,
    params: Params,
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> AccountCurves:
    """Curves of the accounts of `run_members`, compiled if the rules allow it."""
    members = len(next(iter(params.values())))
    env = _compiled_env(market, config, first, last, mandate, members)
    curves = None
    if env is not None:
        actions = BarActions(actor, params, market, last - 1)
        can_roll = can_roll_out(env, [actions])
        curves = _roll(env, [actions], first, last) if can_roll else _step_through(actions, env, first, last)
    return run_members(actor, params, market, config, first, last, mandate) if curves is None else curves


def simulate_ensemble(
    groups: Sequence[tuple[Actor, Params, Sequence[int]]],
    shares: Floats,
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> AccountCurves | None:
    """Curves of one account that follows the mean of the desired weights of an ensemble under its mandate.

    groups: actor, weights and numbers of the members of a specification. shares: [M], weights of the members. None if
    it cannot be compiled: a backtest of the ensemble is the definition.
    """
    env = _compiled_env(market, config, first, last, mandate, 1)
    if env is None or env.mandate_table is None:
        return None
    policies = [BarActions(actor, params, market, last - 1) for actor, params, _ in groups]
    if _can_roll_ensemble(env, policies):
        return _roll(env, policies, first, last, _in_order(groups, shares))
    return _step_through(_EnsembleActions(groups, shares, env, env.mandate_table, last - 1), env, first, last)


def record_ensemble(
    groups: Sequence[tuple[Actor, Params, Sequence[int]]],
    shares: Floats,
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> EnsembleRollout | None:
    """The account of `simulate_ensemble` with its decisions, block after block of bars; None if it is not compiled."""
    env = _compiled_env(market, config, first, last, mandate, 1)
    policies = [BarActions(actor, params, market, last - 1) for actor, params, _ in groups]
    if env is None or env.venue.same_close or not _can_roll_ensemble(env, policies):
        return None
    assert env.mandate_table is not None
    ordered_shares = _in_order(groups, shares)
    blocks = roll_out(env, policies, first, last, ordered_shares, records=True)
    return EnsembleRollout(env.mandate_table, env.venue, ordered_shares, blocks)


def _can_roll_ensemble(env: MarketEnv, policies: Sequence[BarActions]) -> bool:
    """Whether an ensemble can be rolled out: limits on single weights apply to its members before their mean."""
    return env.mandate is not None and env.mandate.max_weight >= 1 and can_roll_out(env, policies)


def _in_order(groups: Sequence[tuple[Actor, Params, Sequence[int]]], shares: Floats) -> Floats:
    """Weights [M] of the members in the order of the groups."""
    return np.concatenate([shares[list(members)] for _, _, members in groups])


class _EnsembleActions:
    """Scores of one account that tilt the base to the mean of what the members desire."""

    def __init__(
        self,
        groups: Sequence[tuple[Actor, Params, Sequence[int]]],
        shares: Floats,
        env: MarketEnv,
        table: MandateTable,
        last: int,
    ) -> None:
        self._groups = [
            (BarActions(actor, params, env.market, last), list(members)) for actor, params, members in groups
        ]
        self._shares = torch.from_numpy(shares)
        self._leverage = env.config.leverage
        self._table = table

    def __call__(self, t: int, account: Tensor) -> Tensor | None:
        """Scores [1, 1, N] at bar t of the account [1, 1, own]; None if no scores give that mean."""
        table = self._table
        holdings = account[0, :, 1 : 1 + table.base.shape[1]]
        scores = torch.empty(len(self._shares), holdings.shape[1], dtype=torch.float64)
        for actions, members in self._groups:
            scores[members] = actions(t, account.expand(len(members), -1, -1))[:, 0].double()
        bar = table.at(t)
        desired = desired_weights(scores, bar, holdings, table.config, self._leverage, table.bars_per_year)
        mean_scores = scores_of((self._shares @ desired).unsqueeze(0), bar, table.config)
        return None if mean_scores is None else mean_scores.unsqueeze(0)


def _compiled_env(
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None,
    members: int,
) -> MarketEnv | None:
    """An environment with an account for each member that decides on the bars first to last - 1.

    None where its rules differ from a backtest, and where its step is not compiled.
    """
    is_supported = (
        config.kind == "portfolio"
        and config.buy_allocation == "proportional"
        and config.delay == 1
        and not RewardState(config).size
        and not on_device(market.close.device)
        and market.first <= first < last < len(market.times)
    )
    if not is_supported or _differs_in_turmoil(market, config, first, last, mandate):
        return None
    own_config = replace(config, envs=members, group=members, window=last - first, reward="log_return")
    env = PortfolioEnv(
        replace(market, steps=max(market.steps, last)),  # the last decision fills, but earns no reward
        own_config,
        first=first,
        last=last - 1,
        starts=[torch.tensor([first])],
        dtype=torch.float64,
        mandate=mandate,
    )
    return env if env.is_compiled else None


def _differs_in_turmoil(
    market: MarketTensor, config: EnvironmentConfig, first: int, last: int, mandate: MandateConfig | None
) -> bool:
    """Whether virtual holdings may differ from a backtest after a bar at which everything is sold.

    A backtest does not decide at such a bar. It matters where holdings are left, or virtual ones are observed.
    """
    if active_mandate(mandate) is None or config.turbulence_limit <= 0:
        return False
    return any(account_extras(config, mandate)) or not bool(market.fillable[first:last].all())


@torch.no_grad()
@one_thread()
def _roll(
    env: MarketEnv, policies: Sequence[BarActions], first: int, last: int, shares: Floats | None = None
) -> AccountCurves | None:
    """The curves of `_step_through` from a rollout of policies; shares: [M] of an ensemble, as in `roll_out`."""
    columns = _Columns(env, first, last)
    score_sums = None
    for block in roll_out(env, policies, first, last, shares):
        columns.add(block.first - first, block.equity, block.turnover, block.costs)
        score_sums = block.score_sums
    return None if score_sums is None else columns.curves(score_sums if shares is None else score_sums.sum(0, True))


@torch.no_grad()
@one_thread()
def _step_through(actions: Actions, env: MarketEnv, first: int, last: int) -> AccountCurves | None:
    """Curves of the accounts of an environment; None if there are no actions at some bar, and as `_Columns.curves`."""
    members = env.envs
    columns = _Columns(env, first, last)
    env.reuse_buffers(True)
    (_, account) = env.reset(0, stagger=False)
    score_sum = torch.zeros(members, env.action_size, dtype=torch.float64)
    for i, t in enumerate(range(first, last)):
        action = actions(t, account.view(members, 1, -1))
        if action is None:
            return None
        action = action.squeeze(1)
        score_sum += action
        step = env.step(action.unsqueeze(0))
        account = step.observation.account
        columns.add(i, step.equity, step.turnover, step.cost)
    return columns.curves(score_sum.sum(-1))


class _Columns:
    """The curves of the accounts of an environment that decides on the bars first to last - 1, filled step by step."""

    def __init__(self, env: MarketEnv, first: int, last: int) -> None:
        self._env = env
        self._span = (first, last)
        self._steps = 0
        self._equity = torch.empty(last - first + 1, env.envs, dtype=torch.float64)
        self._turnover = torch.zeros_like(self._equity)
        self._costs = torch.zeros_like(self._equity)
        self._equity[0] = env.config.cash

    def add(self, i: int, equity: Tensor, turnover: Tensor, costs: Tensor) -> None:
        """Results [K, B] of the steps from the bars i on, counted from the first."""
        stop = self._steps = i + len(equity)
        bar = 0 if self._env.venue.same_close else 1
        self._equity[i + 1 : stop + 1] = equity
        self._turnover[i + bar : stop + bar] = turnover
        self._costs[i + bar : stop + bar] = costs

    def curves(self, score_sums: Tensor) -> AccountCurves | None:
        """The curves; None if an account was ruined, where a backtest goes on without a reset, and if bars are missing.

        score_sums: [B], not finite for a member that ever had a score that is not: its equity is NaN throughout.
        """
        env = self._env
        (first, last) = self._span
        if self._steps < last - first or bool((self._equity <= RUIN * env.config.cash).any()):
            return None
        if env.venue.same_close:
            self._equity -= self._costs  # of the decision at the mark
        risk_free = env.venue.risk_free
        return AccountCurves(
            first=first,
            last=last,
            equity=torch.where(torch.isfinite(score_sums), self._equity, torch.nan),
            turnover=self._turnover,
            costs=self._costs,
            risk_free=None if risk_free is None else risk_free[first:last],
        )

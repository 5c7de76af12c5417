"""Accounts of trained agents, all at once, through the compiled step of the portfolio environment in float64.

`run_members` is the definition and takes whatever the kernel does not cover; a property test compares the two. An
environment here is one group: its accounts share the bar, and each belongs to a member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from finrl_pod.evaluate.backtest import AccountCurves
from finrl_pod.market.account_extras import account_extras
from finrl_pod.market.mandate import MandateTable, active_mandate, desired_weights, scores_of
from finrl_pod.market.rewards import RewardState
from finrl_pod.native.device import on_device, one_thread
from finrl_pod.rl.acting import Actor, BarActions, run_members
from finrl_pod.rl.networks.layers import Params
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Floats, MarketTensor, Tensor
from finrl_pod_envs.market_env import RUIN, MarketEnv
from finrl_pod_envs.trading_envs import PortfolioEnv

Actions = Callable[[int, Tensor], Tensor | None]  # bar, accounts [B, 1, own] -> actions [B, 1, D]


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
    curves = None if env is None else _step_through(BarActions(actor, params, market, last - 1), env, first, last)
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
    return _step_through(_EnsembleActions(groups, shares, env, env.mandate_table, last - 1), env, first, last)


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

    None where its rules differ from those of a backtest, and where its step is not compiled.
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
    """Whether virtual holdings may differ from those of a backtest after a bar at which everything is sold.

    A backtest does not decide at such a bar. It matters where holdings are left, or virtual ones are observed.
    """
    if active_mandate(mandate) is None or config.turbulence_limit <= 0:
        return False
    return any(account_extras(config, mandate)) or not bool(market.fillable[first:last].all())


@torch.no_grad()
@one_thread()
def _step_through(actions: Actions, env: MarketEnv, first: int, last: int) -> AccountCurves | None:
    """Curves of the accounts of an environment.

    None if one was ruined, where a backtest goes on without a reset, and if there are no actions at some bar. The
    equity of a member that ever has a score that is not finite is NaN throughout.
    """
    members = env.envs
    equity = torch.empty(last - first + 1, members, dtype=torch.float64)
    turnover = torch.zeros_like(equity)
    costs = torch.zeros_like(equity)
    equity[0] = env.config.cash
    env.reuse_buffers(True)
    (_, account) = env.reset(0, stagger=False)
    score_sum = torch.zeros(members, env.action_size, dtype=torch.float64)
    fills_at_once = env.venue.same_close
    for i, t in enumerate(range(first, last)):
        action = actions(t, account.view(members, 1, -1))
        if action is None:
            return None
        action = action.squeeze(1)
        score_sum += action
        step = env.step(action.unsqueeze(0))
        account = step.observation.account
        equity[i + 1] = step.equity[0]
        bar = i if fills_at_once else i + 1
        turnover[bar] = step.turnover[0]
        costs[bar] = step.cost[0]
    if bool((equity <= RUIN * env.config.cash).any()):
        return None
    if fills_at_once:
        equity -= costs  # of the decision at the mark
    risk_free = env.venue.risk_free
    return AccountCurves(
        first=first,
        last=last,
        equity=torch.where(torch.isfinite(score_sum).all(-1), equity, torch.nan),
        turnover=turnover,
        costs=costs,
        risk_free=None if risk_free is None else risk_free[first:last],
    )

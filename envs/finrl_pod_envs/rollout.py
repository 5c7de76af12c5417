"""Accounts that follow policies over many bars in compiled code (`market_rollout.h`), in blocks of bars.

Stepping an environment bar by bar with `BarActions` is the definition.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from finrl_pod.native.library import argument_struct
from finrl_pod.rl.acting import BarActions
from finrl_pod.rl.native.kernels import asset_scores_address
from finrl_pod.rl.networks.policies import HoldingScores
from finrl_pod.types import Floats, Tensor
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.market_kernels import STEP_SOURCE


class RolledBars(NamedTuple):
    """K bars of a rollout of B accounts.

    first: number of the first bar. equity, turnover, costs: [K, B], of the step from each bar. score_sums: [R] of all
    bars so far, not finite for a row of scores that ever was not. account: [B, 1 + N], cash and holdings after the last
    bar. accounts, virtual, scores: cash and holdings [K, B, 1 + N], virtual holdings [K, B, N] and scores [K, R, N]
    float32 of the decisions, if they are recorded; else None.
    """

    first: int
    equity: Tensor
    turnover: Tensor
    costs: Tensor
    score_sums: Tensor
    account: Tensor
    accounts: Tensor | None
    virtual: Tensor | None
    scores: Tensor | None


def can_roll_out(env: MarketEnv, policies: Sequence[BarActions]) -> bool:
    """Whether `roll_out` covers the rules of an environment and these policies."""
    covers = env.can_roll_out and all(policy.has_holding_scores for policy in policies)
    return covers and asset_scores_address() is not None


def roll_out(
    env: MarketEnv,
    policies: Sequence[BarActions],
    first: int,
    stop: int,
    shares: Floats | None = None,
    *,
    records: bool = False,
) -> Iterator[RolledBars]:
    """Follow policies from the bars `first` to stop - 1 in an environment that was reset to the first.

    The members of all policies are the accounts, in order; with shares [R], weights that add up to 1, they are an
    ensemble, and one account follows the mean of their desired weights. It ends early where no scores give that mean.
    """
    account = env.reset(0, stagger=False).account
    dtype = env.dtype
    accounts = env.members * env.envs
    assets = env.assets
    rows = accounts if shares is None else len(shares)
    length = min(policy.bars_ahead for policy in policies)
    weights = None if shares is None else torch.from_numpy(shares).contiguous()
    score_sums = torch.zeros(rows, dtype=torch.float64)
    action = torch.empty(accounts, assets, dtype=dtype)
    relative = torch.empty(rows, assets)
    rollout = argument_struct(STEP_SOURCE, "Rollout")()
    rollout.rows = rows
    rollout.scorers = len(policies)
    rollout.asset_scores = asset_scores_address()
    rollout.keeps_scores = records
    rollout.shares = _address(weights)
    for name, x in (("score_sums", score_sums), ("action", action), ("relative", relative)):
        setattr(rollout, name, x.data_ptr())
    for t in range(first, stop, length):
        bars = min(length, stop - t)
        block_scores = [policy.holding_scores(t, t + bars, each=records) for policy in policies]
        scorers = _scorers(block_scores)
        numbers = torch.empty(3, bars, accounts, dtype=dtype)
        account_rows = torch.empty(bars, accounts, 1 + assets, dtype=dtype) if records else None
        virtual = torch.empty(bars, accounts, assets, dtype=dtype) if records else None
        scores = torch.empty(bars if records else 1, rows, assets)
        rollout.bars = bars
        rollout.scorer = ctypes.addressof(scorers)
        rollout.account = account.data_ptr()
        rollout.scores = scores.data_ptr()
        rollout.accounts = _address(account_rows)
        rollout.virtual_holdings = _address(virtual)
        rollout.equity, rollout.turnover, rollout.cost = (x.data_ptr() for x in numbers)
        outcome, steps = env.roll_out(rollout)
        if steps < bars:
            return
        account = outcome.observation.account
        last = outcome.final_observation.account if t + bars == stop else account
        last_account = last.reshape(accounts, -1)
        equity, turnover, costs = numbers.unbind()
        yield RolledBars(
            t, equity, turnover, costs, score_sums, last_account, account_rows, virtual, scores if records else None
        )


def _scorers(scores: Sequence[HoldingScores]) -> Any:
    """Array of `Scorer`; the tensors must outlive it."""
    kind = argument_struct(STEP_SOURCE, "Scorer")
    array = (kind * len(scores))()
    for scorer, (linear, code, holding_w, score_w) in zip(array, scores, strict=True):
        scorer.members = linear.shape[1]
        scorer.width = 0 if code is None else code.shape[-1]
        tensors = {"linear": linear, "code": code, "holding_w": holding_w, "score_w": score_w}
        for name, x in tensors.items():
            setattr(scorer, name, _address(x))
    return array


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()

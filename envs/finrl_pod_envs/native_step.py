"""The step of a market environment on a CPU through `market_step.cpp`, for the rules that it knows.

`MarketEnv.transition` is the definition; what stands here only hands tensors over. Built for a rule set that the
kernel does not know, on another device, or without a compiler, `native_step` gives None.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finrl_pod.native.library import load
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod_envs.rewards import CHANGE_SCALE, SMALLEST_GROWTH

if TYPE_CHECKING:
    from finrl_pod_envs.market_env import EnvState, MarketEnv

SOURCE = Path(__file__).with_name("market_step.cpp")
KINDS = {"stock_trading": 0, "portfolio": 1}
ORDERS = {"proportional": 0, "sequential": 1}
STEP_POINTERS = 20  # of `struct Step` in the kernel: six to read, then fourteen to write
REWARDS = {"log_return": 0, "change": 1}


class _Market(ctypes.Structure):
    """`struct Market` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "groups", "accounts", "assets", "rounds", "window")),
        *((name, ctypes.c_int64) for name in ("kind", "order", "reward", "whole_shares")),
        *((name, ctypes.c_double) for name in ("cost_rate", "cash", "hmax", "leverage", "ruin")),
        *((name, ctypes.c_double) for name in ("change_scale", "smallest_growth")),
        *((name, ctypes.c_void_p) for name in ("close", "fill", "tradable", "fillable", "ended", "stormy", "starts")),
    ]


def native_step(env: MarketEnv, rounds: int) -> NativeStep | None:
    """The kernel for this environment, or None where the plain version must do."""
    config = env.config
    known = (
        env.device.type == "cpu"
        and config.reward in REWARDS
        and not config.short
        and config.leverage == 1.0
        and env.rules.frictions is None
        and env.dtype in (torch.float32, torch.float64)
    )
    library = load(SOURCE) if known else None
    return None if library is None else NativeStep(library, env, rounds)


class NativeStep:
    """Called with a state and actions, as `MarketEnv.transition`; holds the market's tables in the accounts' dtype."""

    def __init__(self, library: ctypes.CDLL, env: MarketEnv, rounds: int) -> None:
        config, market, dtype = env.config, env.market, env.dtype
        self._env = env
        self._run = library.market_step
        self._run.restype = ctypes.c_int64
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        used = slice(env.first, env.last + 1)
        self._tables: dict[str, Tensor] = {"close": env.close.contiguous(), "fill": env.fill.contiguous()}
        if not bool(market.tradable[used].all()):
            self._tables["tradable"] = market.tradable.to(dtype).contiguous()
        if not bool(market.fillable[used].all()):
            self._tables["fillable"] = market.fillable.to(dtype).contiguous()
            self._tables["ended"] = market.ended.to(dtype).contiguous()
        if config.turbulence_limit > 0 and market.turbulence is not None:
            self._tables["stormy"] = (market.turbulence > config.turbulence_limit).to(torch.uint8)
        self._market = _Market(
            env.members,
            env.groups,
            env.accounts,
            env.assets,
            rounds,
            env.window,
            KINDS[config.kind],
            ORDERS[config.order],
            REWARDS[config.reward],
            config.whole_shares,
            env.rules.cost_rate,
            config.cash,
            config.hmax,
            config.leverage,
            0.0,
            CHANGE_SCALE,
            SMALLEST_GROWTH,
        )
        for name, table in self._tables.items():
            setattr(self._market, name, table.data_ptr())
        self._market_at = ctypes.addressof(self._market)
        self._pointers = (ctypes.c_void_p * STEP_POINTERS)()
        self._sizes = (dtype.itemsize, env.shown.itemsize)

    def __call__(self, state: EnvState, action: Tensor, starts: Tensor, ruin: float) -> tuple[EnvState, EnvStep]:
        """action: [P, E, action_size]; starts: [P, rounds, G] int64; ruin: share of the starting cash."""
        env = self._env
        p, e, n, dtype, shown = env.members, env.envs, env.assets, env.dtype, env.shown
        if action.dtype != dtype:
            action = action.to(dtype)
        inputs = [x.contiguous() for x in (*state[:5], action)]
        days = [torch.empty(p, env.groups, dtype=torch.int64) for _ in range(4)]
        cash, shares = torch.empty_like(inputs[3]), torch.empty_like(inputs[4])
        account, last_account = (torch.empty(p, e, n + 1, dtype=shown) for _ in range(2))
        numbers = [torch.empty(p, e, dtype=shown) for _ in range(4)]
        flags = [torch.empty(p, e, dtype=torch.bool) for _ in range(2)]
        outputs = (*days, cash, shares, account, last_account, *numbers, *flags)
        self._market.starts, self._market.ruin = starts.data_ptr(), ruin
        self._pointers[:] = [x.data_ptr() for x in (*inputs, *outputs)]
        ended = self._run(self._market_at, self._pointers, *self._sizes)
        reached, day, left, rounds = days
        gain, worth, turnover, cost = numbers
        terminated, truncated = flags
        outcome = EnvStep(
            observation=Observation(day, account),
            reward=gain,
            terminated=terminated,
            truncated=truncated,
            final_observation=Observation(reached, last_account if ended else account),
            equity=worth,
            turnover=turnover,
            cost=cost,
        )
        return type(state)(day, left, rounds, cash, shares, None), outcome


def can_take(state: EnvState, action: Tensor) -> bool:
    """Whether the kernel may be used on these tensors: no gradient is asked for, and none is being traced."""
    followed: Any = torch.is_grad_enabled() and (
        action.requires_grad or state.shares.requires_grad or state.cash.requires_grad
    )
    return not followed and not torch.compiler.is_compiling()

"""The step of a market environment on a CPU through `market_step.cpp`, for the rules that it knows.

`MarketEnv.transition` is the definition; what stands here only hands tensors over. Built for a rule set that the
kernel does not know, on another device, or without a compiler, `native_step` gives None.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from finrl_pod.native.library import load
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod_envs.rewards import CHANGE_SCALE, SMALLEST_GROWTH
from finrl_pod_envs.state import EnvState, KernelEnv

SOURCE = Path(__file__).with_name("market_step.cpp")
KINDS = {"stock_trading": 0, "portfolio": 1}
ORDERS = {"proportional": 0, "sequential": 1}
INPUTS, STEP_POINTERS = 6, 21  # of `struct Step` in the kernel: what is read, and all
REWARDS = {"log_return": 0, "change": 1}


class _Market(ctypes.Structure):
    """`struct Market` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "groups", "accounts", "assets", "rounds", "window")),
        *((name, ctypes.c_int64) for name in ("kind", "order", "reward", "whole_shares")),
        *((name, ctypes.c_double) for name in ("cost_rate", "cash", "hmax", "leverage", "ruin")),
        *((name, ctypes.c_double) for name in ("change_scale", "smallest_growth")),
        *(
            (name, ctypes.c_void_p)
            for name in ("close", "fill", "tradable", "fillable", "ended", "turbulent", "starts")
        ),
        ("features", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("only_ended", ctypes.c_int64),
    ]


def native_step(env: KernelEnv, rounds: int) -> NativeStep | None:
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

    def __init__(self, library: ctypes.CDLL, env: KernelEnv, rounds: int) -> None:
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
        if env.turbulent is not None:
            self._tables["turbulent"] = env.turbulent.to(torch.uint8)
        self._market = _Market(
            env.members,
            env.groups,
            env.accounts,
            env.assets,
            rounds,
            env.window,
            KINDS[config.kind],
            ORDERS[config.buy_allocation],
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
        features = market.features.contiguous()
        self._tables["features"], self._market.width = features, features[0].numel()
        self._shows_rows = env.shown == features.dtype == torch.float32
        for name, table in self._tables.items():
            setattr(self._market, name, table.data_ptr())
        self._market_at = ctypes.addressof(self._market)
        self._pointers = (ctypes.c_void_p * STEP_POINTERS)()
        self._sizes = (dtype.itemsize, env.shown.itemsize)
        self._kept: list[_Outputs] = []
        self._turn = 0

    def __call__(
        self,
        state: EnvState,
        action: Tensor,
        starts: Tensor,
        ruin: float,
        rows: Tensor | None = None,
        *,
        reuse: bool = False,
    ) -> tuple[EnvState, EnvStep]:
        """action: [P, E, action_size]; starts: [P, rounds, G] int64; ruin: share of the starting cash.

        rows: receives the flat observation, where `can_write` says that it may. reuse: write over the outputs of the
        step before the last, and leave out the final accounts of episodes that did not end.
        """
        env = self._env
        if action.dtype != env.dtype:
            action = action.to(env.dtype)
        inputs = [x.contiguous() for x in (*state[:5], action)]
        out = self._in_turn() if reuse else _Outputs(env)
        self._market.starts, self._market.ruin, self._market.only_ended = starts.data_ptr(), ruin, reuse
        self._pointers[:INPUTS] = [x.data_ptr() for x in inputs]
        self._pointers[INPUTS:-1] = out.pointers
        self._pointers[-1] = None if rows is None else rows.data_ptr()
        ended = self._run(self._market_at, self._pointers, *self._sizes)
        return out.state, out.ended if ended else out.going

    def _in_turn(self) -> _Outputs:
        """One of two, the one before the last again."""
        if not self._kept:
            self._kept = [_Outputs(self._env) for _ in range(2)]
        self._turn = 1 - self._turn
        return self._kept[self._turn]

    def can_write(self, rows: Tensor) -> bool:
        """Whether the kernel can write flat rows into this tensor of the right shape."""
        return self._shows_rows and rows.dtype == torch.float32 and rows.is_contiguous() and rows.device.type == "cpu"


class _Outputs:
    """What one step writes: the next state, and the outcome, where an episode `ended` or where all are `going` on.

    Few tensors, each taken apart into what is handed over: making one takes as long as stepping forty accounts.
    """

    def __init__(self, env: KernelEnv) -> None:
        p, g, e, n, shown = env.members, env.groups, env.envs, env.assets, env.shown
        days, numbers = torch.empty(4, p, g, dtype=torch.int64), torch.empty(4, p, e, dtype=shown)
        cash = torch.empty(1, p, g, env.accounts, dtype=env.dtype)
        shares = torch.empty(1, p, g, env.accounts, n, dtype=env.dtype)
        accounts, flags = torch.empty(2, p, e, n + 1, dtype=shown), torch.empty(2, p, e, dtype=torch.bool)
        self.pointers: list[Any] = [at for x in (days, cash, shares, accounts, numbers, flags) for at in _each(x)]
        reached, day, left, rounds = days.unbind()
        account, last_account = accounts.unbind()
        gain, worth, turnover, cost = numbers.unbind()
        terminated, truncated = flags.unbind()
        self.state = EnvState(day, left, rounds, cash[0], shares[0], None)
        now, last = Observation(day, account), Observation(reached, account)
        self.going = EnvStep(now, gain, terminated, truncated, last, worth, turnover, cost)
        self.ended = EnvStep(
            now, gain, terminated, truncated, Observation(reached, last_account), worth, turnover, cost
        )


def _each(stacked: Tensor) -> range:
    """Where each part of a contiguous tensor lies in memory."""
    start, size = stacked.data_ptr(), stacked.stride(0) * stacked.itemsize
    return range(start, start + len(stacked) * size, size)


def can_take(state: EnvState, action: Tensor) -> bool:
    """Whether the kernel may be used on these tensors: no gradient is asked for, and none is being traced."""
    followed: Any = torch.is_grad_enabled() and (
        action.requires_grad or state.shares.requires_grad or state.cash.requires_grad
    )
    return not followed and not torch.compiler.is_compiling()

"""The portfolio environment's step and its derivative on a CPU through `market_gradient.cpp`.

`MarketEnv.transition` under autograd is the definition; this takes a tenth of the time, because an account is worked
through while it is in registers, and nothing is kept but what the step started from.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from finrl_pod.native.library import load
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod_envs.native_step import REWARDS
from finrl_pod_envs.rewards import CHANGE_SCALE, SMALLEST_GROWTH
from finrl_pod_envs.state import EnvState, KernelEnv

SOURCE = Path(__file__).with_name("market_gradient.cpp")


class _Market(ctypes.Structure):
    """`struct Market` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "accounts", "assets", "reward")),
        *((name, ctypes.c_double) for name in ("cost_rate", "cash", "leverage", "ruin")),
        *((name, ctypes.c_double) for name in ("change_scale", "smallest_growth")),
        *((name, ctypes.c_void_p) for name in ("close", "fill", "tradable", "fillable", "ended", "turbulent")),
    ]


_READ = ("day", "over", "cash", "shares", "action")
_MADE = (
    "next_cash",
    "next_shares",
    "account",
    "last_account",
    "gain",
    "worth",
    "turnover",
    "cost",
    "ruined",
    "again",
)
_GIVEN = ("grad_cash", "grad_shares", "grad_account", "grad_last", "grad_gain")
_ASKED = ("to_cash", "to_shares", "to_action")


class _Step(ctypes.Structure):
    """`struct Step` of the kernel."""

    _fields_ = [(name, ctypes.c_void_p) for name in (*_READ, *_MADE, *_GIVEN, *_ASKED)]


def native_gradient(env: KernelEnv) -> NativeGradient | None:
    """The kernel for this environment, or None where autograd must do."""
    config = env.config
    known = (
        env.device.type == "cpu"
        and config.kind == "portfolio"
        and config.reward in REWARDS
        and config.buy_allocation == "proportional"
        and not config.whole_shares
        and not config.short
        and config.leverage == 1.0
        and env.rules.frictions is None
        and env.dtype == env.shown
        and env.dtype in (torch.float32, torch.float64)
    )
    library = load(SOURCE) if known else None
    return None if library is None else NativeGradient(library, env)


class NativeGradient:
    """Called with a state, actions and the groups whose windows end; as `MarketEnv.transition`, with derivatives."""

    def __init__(self, library: ctypes.CDLL, env: KernelEnv) -> None:
        config, market = env.config, env.market
        self._run = library.market_gradient
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._bytes = env.dtype.itemsize
        used = slice(env.first, env.last + 1)
        self._tables: dict[str, Tensor] = {"close": env.close.contiguous(), "fill": env.fill.contiguous()}
        for name in ("tradable", "fillable"):
            table = getattr(market, name)
            if not bool(table[used].all()):
                self._tables[name] = table.to(torch.uint8).contiguous()
        if "fillable" in self._tables:
            self._tables["ended"] = market.ended.to(torch.uint8).contiguous()
        if env.turbulent is not None:
            self._tables["turbulent"] = env.turbulent.to(torch.uint8)
        self.market = _Market(
            env.members * env.groups,
            env.accounts,
            env.assets,
            REWARDS[config.reward],
            env.rules.cost_rate,
            config.cash,
            config.leverage,
            0.0,
            CHANGE_SCALE,
            SMALLEST_GROWTH,
        )
        for name, table in self._tables.items():
            setattr(self.market, name, table.data_ptr())

    def run(self, back: bool, **tensors: Tensor | None) -> None:
        """One pass. Every tensor is contiguous and is kept alive by the caller."""
        step = _Step(**{name: x.data_ptr() for name, x in tensors.items() if x is not None})
        self._run(ctypes.addressof(self.market), ctypes.addressof(step), self._bytes, back)

    def __call__(self, state: EnvState, action: Tensor, over: Tensor, ruin: float) -> tuple[Tensor, Tensor, EnvStep]:
        """Cash [P, G, A] and shares [P, G, A, N] to go on with, and the outcome (its day not yet reset).

        action: [P, G, A, 1 + N]; over: [P, G] bool, windows that end with this step; ruin: share of the starting cash.
        """
        self.market.ruin = ruin
        out = _Followed.apply(state.cash, state.shares, action, self, state.day, over)  # type: ignore[no-untyped-call]
        cash, shares, account, last, gain, worth, turnover, cost, ruined = out
        p, flat = cash.shape[0], (cash.shape[0], -1)
        truncated = over.unsqueeze(-1) & ~ruined
        outcome = EnvStep(
            observation=Observation(state.day + 1, account.view(*flat, account.shape[-1])),
            reward=gain.view(flat),
            terminated=ruined.view(flat),
            truncated=truncated.view(flat),
            final_observation=Observation(state.day + 1, last.view(p, -1, last.shape[-1])),
            equity=worth.view(flat),
            turnover=turnover.view(flat),
            cost=cost.view(flat),
        )
        return cash, shares, outcome


class _Followed(torch.autograd.Function):
    """Only cash, shares, accounts and reward have derivatives."""

    @staticmethod
    def forward(
        ctx: Any, cash: Tensor, shares: Tensor, action: Tensor, kernel: NativeGradient, day: Tensor, over: Tensor
    ) -> tuple[Tensor, ...]:
        read = [x.contiguous() for x in (day, over, cash, shares, action)]
        numbers = [torch.empty_like(x) for x in (read[2], read[3], read[4], read[4], *[read[2]] * 4)]
        flags = [torch.empty_like(read[2], dtype=torch.bool) for _ in range(2)]
        made = [*numbers, *flags]
        kernel.run(False, **dict(zip((*_READ, *_MADE), (*read, *made), strict=True)))
        *shown, again = made
        ctx.mark_non_differentiable(*shown[5:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*read, again)
        ctx.kernel = kernel
        return tuple(shown)

    @staticmethod
    def backward(ctx: Any, *outward: Tensor | None) -> tuple[Tensor | None, ...]:
        *read, again = ctx.saved_tensors
        given = [None if x is None else x.contiguous() for x in outward[:5]]
        asked = [torch.empty_like(x) for x in read[2:]]
        named = zip((*_READ, "again", *_GIVEN, *_ASKED), (*read, again, *given, *asked), strict=True)
        ctx.kernel.run(True, **dict(named))
        return (*asked, None, None, None)

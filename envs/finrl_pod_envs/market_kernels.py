"""Market environments in C++ on the CPU: the step (`market_step.cpp`) and its derivative (`market_gradient.cpp`).

`MarketEnv.transition` in torch is the definition; property tests compare the kernels with it. The gradient takes a
tenth of the time of autograd, because an account is processed while it is in registers and only the inputs of a
step are kept. `make_step_kernel` and `make_gradient_kernel` return None for unsupported rules, on another
device or dtype, and without a compiler.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finrl_pod.market.account_extras import joined_extras, observes_virtual
from finrl_pod.market.mandate import MandateTable, initial_budget, limits_names, needs_returns, uses_groups
from finrl_pod.market.rewards import CHANGE_SCALE, MIN_GROWTH
from finrl_pod.native.device import on_device
from finrl_pod.native.kernel_launch import use_triton
from finrl_pod.native.library import argument_struct, load
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod_envs.observation import EnvState, KernelEnv

if TYPE_CHECKING:
    from finrl_pod_envs.triton_step import TritonStep

STEP_SOURCE, GRADIENT_SOURCE = (Path(__file__).with_name(f"market_{name}.cpp") for name in ("step", "gradient"))
# Enums of the kernels.
KINDS = {"stock_trading": 0, "portfolio": 1}
BUY_ALLOCATIONS = {"proportional": 0, "sequential": 1}
LOG_RETURN = 0
CHANGE = 1
_log = logging.getLogger(__name__)


def _rules_without_kernel(env: KernelEnv) -> list[str]:
    """Settings of the environment that the kernels lack: shorts, leverage, frictions and some limits of a mandate."""
    config = env.config
    mandate = env.mandate
    is_limited = mandate is not None and (needs_returns(mandate) or limits_names(mandate) or uses_groups(mandate))
    rules = {
        "short": config.short,
        "leverage": config.leverage != 1.0,
        "costs other than proportional ones, interest, dividends or a delay": not env.venue.is_proportional,
        "limits of the mandate on risk, names or groups": is_limited,
        f"accounts in {env.dtype}": env.dtype not in (torch.float32, torch.float64),
    }
    return [rule for rule, is_on in rules.items() if is_on]


def _set_market(market: Any, env: KernelEnv) -> dict[str, Tensor]:
    """Fill the kernel market from the environment; returns its tables. They must outlive it."""
    config = env.config
    dtype = env.dtype
    market.members = env.members
    market.groups = env.groups
    market.accounts = env.accounts
    market.assets = env.assets
    market.reward = CHANGE if env.reward.kernel == "gain" else LOG_RETURN
    market.cost_rate = env.venue.cost_rate
    market.cash = config.cash
    market.leverage = config.leverage
    market.change_scale = CHANGE_SCALE
    market.min_growth = MIN_GROWTH
    used_bars = slice(env.first, env.last + 1)
    tables = {"close": env.close.contiguous(), "fill": env.fill.contiguous()}
    if not bool(env.market.tradable[used_bars].all()):
        tables["tradable"] = env.market.tradable.to(dtype).contiguous()
    if not bool(env.market.fillable[used_bars].all()):
        tables["fillable"] = env.market.fillable.to(dtype).contiguous()
        tables["delisted"] = env.market.delisted.to(dtype).contiguous()
    if env.turbulent is not None:
        tables["turbulent"] = env.turbulent.to(torch.uint8)
    if env.venue.cost_rates is not None:
        tables["cost_rates"] = env.venue.cost_rates.contiguous()
    for name, table in tables.items():
        setattr(market, name, table.data_ptr())
    market.mandate.max_weight = 1.0
    if env.mandate_table is not None:
        tables |= _set_mandate(market.mandate, env.mandate_table)
    return tables


def _set_mandate(mandate: Any, table: MandateTable) -> dict[str, Tensor]:
    """Fill the kernel mandate; returns its tables. They must outlive it."""
    config = table.config
    mandate.tilt = config.tilt
    mandate.trade_speed = config.trade_speed
    mandate.max_weight = config.max_weight
    mandate.full_budget = initial_budget(config)
    mandate.budget_per_bar = config.max_turnover / table.bars_per_year
    tables = {"base": table.base.contiguous(), "decides": table.decides.to(torch.uint8)}
    mandate.base = tables["base"].data_ptr()
    mandate.decides = tables["decides"].data_ptr()
    return tables


# ---------------------------------------------------------------------- step


def make_step_kernel(env: KernelEnv, rounds: int) -> StepKernel | None:
    """The step kernel of an environment, or None if torch has to be used. rounds: start windows per group."""
    if on_device(env.device) or _rules_without_kernel(env):
        return None
    library = load(STEP_SOURCE)
    return None if library is None else StepKernel(library, env, rounds)


def make_device_step(env: KernelEnv, rounds: int) -> TritonStep | None:
    """The Triton step kernel of an environment on a GPU, or None (logged) if torch has to be used.

    rounds: start windows per group.
    """
    rules = _rules_without_kernel(env) + ["sequential buys"] * (env.config.buy_allocation == "sequential")
    if not rules and use_triton(env.close):
        from finrl_pod_envs.triton_step import TritonStep

        return TritonStep(env, rounds)
    if env.device.type == "cuda":
        reason = f"has no {', no '.join(rules)}" if rules else "needs Triton, which is not installed"
        _log.warning("torch steps the environment, more slowly than its kernel, which %s", reason)
    return None


def can_use_kernel(state: EnvState, action: Tensor) -> bool:
    """Whether the step kernel may be used on these tensors: no gradient is needed and nothing is being traced."""
    needs_gradient: Any = torch.is_grad_enabled() and (
        action.requires_grad
        or state.shares.requires_grad
        or state.cash.requires_grad
        or (state.virtual is not None and state.virtual.requires_grad)
    )
    return not needs_gradient and not torch.compiler.is_compiling()


class StepKernel:
    """`MarketEnv.transition` for P members, G groups and E accounts in C++; holds the tables of the market."""

    def __init__(self, library: ctypes.CDLL, env: KernelEnv, rounds: int) -> None:
        config = env.config
        self._env: KernelEnv = weakref.proxy(env)  # in a cycle, its tables would outlive it
        self._library = library
        self._run = library.market_step
        self._run.restype = ctypes.c_int64
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        market = self._market = argument_struct(STEP_SOURCE, "StepMarket")()
        self._tables = _set_market(market, env)
        market.rounds = rounds
        market.episode_bars = env.episode_bars
        market.kind = KINDS[config.kind]
        market.buy_allocation = BUY_ALLOCATIONS[config.buy_allocation]
        market.whole_shares = config.whole_shares
        market.hmax = config.hmax
        features = self._tables["features"] = env.market.features.contiguous()
        restricted_bars = ~(env.market.tradable & env.market.fillable).all(-1)
        restricted_bars[: env.first] = False
        restricted_bars[env.last + 1 :] = False
        if env.turbulent is not None:
            restricted_bars |= env.turbulent
        if bool(restricted_bars.any()):
            self._tables["limited"] = restricted_bars.to(torch.uint8)
            market.limited = self._tables["limited"].data_ptr()
        market.features = features.data_ptr()
        market.width = features[0].numel()
        self._writes_rows = env.output_dtype == features.dtype == torch.float32
        self._market_address = ctypes.addressof(market)
        # The pointers of `StepBuffers` in order: an array is set three times as fast as named fields.
        self._pointers = (ctypes.c_void_p * len(argument_struct(STEP_SOURCE, "StepBuffers")._fields_))()
        self._sizes = (env.dtype.itemsize, env.output_dtype.itemsize)
        self._buffers: list[_Outputs] = []
        self._turn = 0

    def __call__(
        self,
        state: EnvState,
        action: Tensor,
        starts: Tensor,
        ruin: float,
        out: Tensor | None = None,
        *,
        reuse: bool = False,
    ) -> tuple[EnvState, EnvStep]:
        """The next state and the results of one step.

        action: [P, E, action_size]; starts: [P, rounds, G] int64; ruin: share of the starting cash below which an
        account is terminated. out: [P, E, 1 + N + N F] float32, receives the flat observation if `can_write` allows
        it. reuse: overwrite the outputs of the step before the last, and omit the final accounts of episodes that did
        not end.
        """
        env = self._env
        if action.dtype != env.dtype:
            action = action.to(env.dtype)
        tensors = (*state[:5], action, state.virtual, state.budget)
        inputs = [None if x is None else x.contiguous() for x in tensors]
        if reuse:
            self._buffers = self._buffers or [_Outputs(env) for _ in range(2)]
            self._turn = 1 - self._turn
        outputs = self._buffers[self._turn] if reuse else _Outputs(env)
        self._market.starts = starts.data_ptr()
        self._market.ruin = ruin
        self._market.only_ended = reuse
        self._pointers[: len(inputs)] = [None if x is None else x.data_ptr() for x in inputs]
        self._pointers[len(inputs) : -1] = outputs.pointers
        self._pointers[-1] = None if out is None else out.data_ptr()
        any_ended = self._run(self._market_address, self._pointers, *self._sizes)
        result = outputs.result_with_ends if any_ended else outputs.result
        return outputs.state, outputs.with_extras(result) if any(env.extras) else result

    def roll_out(self, state: EnvState, starts: Tensor, ruin: float, rollout: Any) -> tuple[EnvState, EnvStep, int]:
        """Step along the bars of a `Rollout` of market_rollout.h; accounts and outputs must have one dtype.

        Returns the state and the results of the last step, and the number of steps. Final accounts are filled in if an
        episode ended at the last step.
        """
        self._buffers = self._buffers or [_Outputs(self._env) for _ in range(2)]
        self._market.starts = starts.data_ptr()
        self._market.ruin = ruin
        self._market.only_ended = True
        turns = (1 - self._turn, self._turn)  # the state may be in the buffers of the last step
        size = len(self._pointers)
        pointers = (ctypes.c_void_p * (3 * size))()
        for i, before in enumerate((state, self._buffers[turns[0]].state, self._buffers[turns[1]].state)):
            tensors = (*before[:5], None, before.virtual, before.budget)
            addresses = [None if x is None else x.data_ptr() for x in tensors]
            addresses[5] = rollout.action
            pointers[i * size : (i + 1) * size] = [*addresses, *self._buffers[turns[i % 2]].pointers, None]
        function = self._library.market_rollout
        function.restype = ctypes.c_int64
        steps: int = function(
            ctypes.c_void_p(self._market_address), pointers, ctypes.byref(rollout), ctypes.c_int64(self._sizes[0])
        )
        self._turn = turns[(steps - 1) % 2]
        last = self._buffers[self._turn]
        return last.state, last.result_with_ends, steps

    def can_write(self, out: Tensor) -> bool:
        """Whether the kernel can write flat observations into this tensor of the right shape."""
        fits = self._writes_rows and not any(self._env.extras)
        return fits and out.dtype == torch.float32 and out.is_contiguous() and out.device.type == "cpu"


class _Outputs:
    """Tensors that one step writes: the next state and the result, with or without ended episodes.

    Few tensors are allocated and split into views, because one allocation takes as long as stepping forty accounts.
    """

    def __init__(self, env: KernelEnv) -> None:
        p = env.members
        g = env.groups
        e = env.envs
        n = env.assets
        dtype = env.output_dtype
        bars = torch.empty(4, p, g, dtype=torch.int64)
        numbers = torch.empty(4, p, e, dtype=dtype)
        cash = torch.empty(1, p, g, env.accounts, dtype=env.dtype)
        mandate = env.mandate
        holdings = torch.empty(1 if mandate is None else 2, p, g, env.accounts, n, dtype=env.dtype)
        restricted_bars = mandate is not None and mandate.max_turnover > 0
        budget = torch.empty(p, g, env.accounts, dtype=env.dtype) if restricted_bars else None
        accounts = torch.empty(2, p, e, n + 1, dtype=dtype)
        flags = torch.empty(2, p, e, dtype=torch.bool)
        tensor_groups = (bars, cash, holdings[:1], accounts, numbers, flags)
        self.pointers: list[Any] = [address for x in tensor_groups for address in _addresses(x)]
        virtual = None if mandate is None else holdings[1]
        self._mandate = mandate
        observes_holdings = observes_virtual(env.config, mandate)
        self._last_virtual = torch.empty_like(virtual) if observes_holdings and virtual is not None else None
        self._last_budget = None if budget is None else torch.empty_like(budget)
        optional = (virtual, budget, self._last_virtual, self._last_budget)
        self.pointers += [None if x is None else x.data_ptr() for x in optional]
        reached_bar, bar, steps_left, episode_index = bars.unbind()
        account, last_account = accounts.unbind()
        reward, equity, turnover, cost = numbers.unbind()
        terminated, truncated = flags.unbind()
        self.state = EnvState(bar, steps_left, episode_index, cash[0], holdings[0], None, None, virtual, budget)
        observation = Observation(bar, account)
        final = Observation(reached_bar, account)
        self.result = EnvStep(observation, reward, terminated, truncated, final, equity, turnover, cost)
        self.result_with_ends = self.result._replace(final_observation=Observation(reached_bar, last_account))

    def with_extras(self, result: EnvStep) -> EnvStep:
        """A result with virtual holdings and turnover budget after the accounts, as far as they are observed."""
        state = self.state
        (bar, account) = result.observation
        (reached_bar, last) = result.final_observation
        virtual = None if self._last_virtual is None else state.virtual
        observation = Observation(bar, self._with_observed_extras(account, virtual, state.budget))
        has_ended = last.data_ptr() != account.data_ptr()
        final = (
            self._with_observed_extras(last, self._last_virtual, self._last_budget)
            if has_ended
            else observation.account
        )
        return result._replace(observation=observation, final_observation=Observation(reached_bar, final))

    def _with_observed_extras(self, account: Tensor, virtual: Tensor | None, budget: Tensor | None) -> Tensor:
        extras = joined_extras(account, [], virtual, None, budget, self._mandate)
        return torch.cat([account, extras.view(*account.shape[:-1], -1).to(account.dtype)], -1)


def _addresses(tensor_groups: Tensor) -> range:
    """Memory addresses of the slices of a contiguous tensor."""
    start = tensor_groups.data_ptr()
    size = tensor_groups.stride(0) * tensor_groups.itemsize
    return range(start, start + len(tensor_groups) * size, size)


# ---------------------------------------------------------------------- gradient

_READ = ("bar", "window_ends", "cash", "shares", "action", "virtual_holdings")
_DIFFERENTIABLE = ("next_cash", "next_shares", "next_virtual_holdings", "account", "last_account", "reward")
_WRITTEN = (*_DIFFERENTIABLE, "equity", "turnover", "cost", "ruined", "reset")
_GRADIENTS_IN = tuple(f"{name}_gradient" for name in _DIFFERENTIABLE)
_GRADIENTS_OUT = tuple(f"{name}_gradient" for name in _READ[2:])


def make_gradient_kernel(env: KernelEnv) -> GradientKernel | None:
    """The kernel of the differentiable step of an environment, or None if autograd has to be used.

    Portfolio environments only, with fractional shares and proportional buys; no mandate that limits single weights or
    turnover.
    """
    config = env.config
    mandate = env.mandate
    is_supported = (
        not on_device(env.device)
        and not _rules_without_kernel(env)
        and config.kind == "portfolio"
        and config.buy_allocation == "proportional"
        and not config.whole_shares
        and env.dtype == env.output_dtype
        and (mandate is None or (mandate.max_weight == 1 and not mandate.max_turnover))
        and not any(env.extras)
    )
    library = load(GRADIENT_SOURCE) if is_supported else None
    return None if library is None else GradientKernel(library, env)


class GradientKernel:
    """`MarketEnv.transition` with derivatives of cash, shares, accounts and reward, in C++."""

    def __init__(self, library: ctypes.CDLL, env: KernelEnv) -> None:
        self._run = library.market_gradient
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._dtype_bytes = env.dtype.itemsize
        self._market = argument_struct(GRADIENT_SOURCE, "Market")()
        self._tables = _set_market(self._market, env)

    def run(self, backward: bool, **tensors: Tensor | None) -> None:
        """Run one pass on contiguous tensors that the caller keeps alive."""
        buffers = argument_struct(GRADIENT_SOURCE, "GradientBuffers")(
            **{name: x.data_ptr() for name, x in tensors.items() if x is not None}
        )
        self._run(ctypes.addressof(self._market), ctypes.addressof(buffers), self._dtype_bytes, backward)

    def __call__(self, state: EnvState, action: Tensor, window_ends: Tensor, ruin: float) -> tuple[EnvState, EnvStep]:
        """The next state and the results, both with the bar before a reset.

        action: [P, G, A, action_size]; window_ends: [P, G] bool, at this step; ruin: share of the starting cash below
        which an account is terminated.
        """
        self._market.ruin = ruin
        inputs = (state.cash, state.shares, action, state.virtual)
        results = _StepFunction.apply(*inputs, self, state.bar, window_ends)  # type: ignore[no-untyped-call]
        cash, shares, virtual, account, last, reward, equity, turnover, cost, is_ruined = results
        flat = (cash.shape[0], -1)
        truncated = window_ends.unsqueeze(-1) & ~is_ruined
        step = EnvStep(
            observation=Observation(state.bar + 1, account.view(*flat, account.shape[-1])),
            reward=reward.view(flat),
            terminated=is_ruined.view(flat),
            truncated=truncated.view(flat),
            final_observation=Observation(state.bar + 1, last.view(*flat, last.shape[-1])),
            equity=equity.view(flat),
            turnover=turnover.view(flat),
            cost=cost.view(flat),
        )
        next_state = EnvState(
            state.bar + 1, state.steps_left - 1, state.episode_index, cash, shares, None, None, virtual
        )
        return next_state, step


class _StepFunction(torch.autograd.Function):
    """One step as an autograd function; cash, shares, virtual holdings, accounts and reward are differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        cash: Tensor,
        shares: Tensor,
        action: Tensor,
        virtual: Tensor | None,
        kernel: GradientKernel,
        bar: Tensor,
        window_ends: Tensor,
    ) -> tuple[Tensor | None, ...]:
        read = [None if x is None else x.contiguous() for x in (bar, window_ends, cash, shares, action, virtual)]
        account = cash.new_empty(*cash.shape, shares.shape[-1] + 1)
        numbers = [cash, shares, virtual, account, account, *[cash] * 4]
        output_tensors = [
            None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in numbers
        ]
        output_tensors += [
            torch.empty_like(cash, dtype=torch.bool, memory_format=torch.contiguous_format) for _ in range(2)
        ]
        kernel.run(False, **dict(zip((*_READ, *_WRITTEN), (*read, *output_tensors), strict=True)))
        *results, reset = output_tensors
        ctx.mark_non_differentiable(*results[len(_DIFFERENTIABLE) :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*read, reset)
        ctx.kernel = kernel
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *read, reset = ctx.saved_tensors
        tensors = [None if x is None else x.contiguous() for x in gradients[: len(_DIFFERENTIABLE)]]
        out = [None if x is None else torch.empty_like(x) for x in read[2:]]
        names = (*_READ, "reset", *_GRADIENTS_IN, *_GRADIENTS_OUT)
        ctx.kernel.run(True, **dict(zip(names, (*read, reset, *tensors, *out), strict=True)))
        return (*out, None, None, None)

"""Base class of market environments: windows, accounts, fills, rewards, auto-reset.

The state is a bar for each group of environments and an account for each environment; all read the same market table.
Subclasses convert actions to share trades and define the units in which the account is observed.

Shapes: [P, G] for groups, [P, G, A] for accounts, [P, G, A, N] for holdings. The public methods take and return
[P, E] and [P, E, N] with E = G * A.
"""

from __future__ import annotations

import ctypes
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch

from finrl_pod.data.price_features import turbulent_bars
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.market.account_extras import account_extras, joined_extras, observes_virtual
from finrl_pod.market.execution import account_equity, limit_gross_exposure, trades_to_weights
from finrl_pod.market.mandate import (
    Decision,
    MandateTable,
    active_mandate,
    drift,
    equal_base,
    initial_budget,
    replenish_budget,
)
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.market.rewards import MIN_GROWTH, Interval, StepReward
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.native.device import on_device
from finrl_pod.native.kernel_launch import KernelError
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.tables import in_dtype
from finrl_pod.types import EnvStep, MarketTensor, Observation, Tensor
from finrl_pod_envs.market_kernels import (
    GradientKernel,
    StepKernel,
    can_use_kernel,
    make_device_step,
    make_gradient_kernel,
    make_step_kernel,
)
from finrl_pod_envs.observation import EnvState, flat, flat_size

if TYPE_CHECKING:
    from finrl_pod_envs.triton_step import TritonStep

Record = TypeVar("Record", EnvState, Observation)

RUIN = 0.01  # an account at or below this fraction of its starting cash is ruined: its episode terminates
TABLE_ROWS = 2**16  # of a table that is computed at a time
START_ROUNDS = 256  # start windows drawn ahead for each group; they repeat after that many episodes


class MarketEnv(ABC):
    """P members times E accounts on one market; implements `protocols.DifferentiableVecEnv`."""

    KIND: ClassVar[Literal["portfolio", "stock_trading", "discrete"] | None] = None  # set by built-in classes

    def __init__(
        self,
        market: MarketTensor,
        config: EnvironmentConfig | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        members: Sequence[int] = (0,),
        envs: int | None = None,
        group: int | None = None,
        starts: Sequence[Tensor] | None = None,
        dtype: torch.dtype | None = None,
        mandate: MandateConfig | None = None,
    ) -> None:
        """Decisions are taken at bars first..last of `market` (inclusive), as far as fills exist.

        config: its `kind` is replaced by the kind of the class. members: ids that key the random generators. envs,
        group: override the config's. starts: one list per member, [K] int64 bars at which its episodes start, each as
        likely as the others; None: every bar that leaves a full window.
        dtype: dtype of accounts and of step outputs; None: float32, but accounts are float64 with sequential buys in
        whole shares, where one share flipped by rounding would change every later purchase.
        mandate: bounds on what an agent may hold and trade; None or base "none": unconstrained. Raises ConfigError for
        settings that are out of range, in conflict, or do not fit the market.
        """
        config = config or EnvironmentConfig()
        if self.KIND is not None:
            config = dataclasses.replace(config, kind=self.KIND)
        _check_config(config, market)
        self.market = market
        self.config = config
        exact = config.whole_shares and config.buy_allocation == "sequential"
        self.dtype = dtype or (torch.float64 if exact else torch.float32)
        self.output_dtype = dtype or torch.float32
        self.member_ids = tuple(members)
        self.members = len(self.member_ids)
        self.envs = config.envs if envs is None else envs
        self.accounts = min(config.group, self.envs) if group is None else group
        if min(self.envs, self.accounts) < 1:
            raise InputError(f"envs and group must be at least 1, got {self.envs} and {self.accounts}")
        if self.envs % self.accounts:
            raise ConfigError(
                f"environment.envs must be a multiple of environment.group, got {self.envs} and {self.accounts}"
            )
        self.groups = self.envs // self.accounts
        self.assets = market.shape[1]
        self.device = market.close.device
        self.first = max(market.first if first is None else first, market.first)
        self.last = min(market.steps - 1 if last is None else last, market.steps - 1)
        if self.last < self.first:
            raise ConfigError(
                "an environment needs at least one decision bar with two later fills, got bars "
                f"{self.first} to {self.last} of {market.shape[0]}; give it more bars or a later end"
            )
        self.episode_bars = min(config.window, self.last - self.first + 1)
        self._allowed_starts = None if starts is None else self._checked_starts(starts)
        self.rules = rules_of(config)
        self.venue = Venue(market, self.rules, self.dtype)
        self.close = in_dtype(market.close, self.dtype)
        self.fill = self.venue.fill
        self.turbulent = turbulent_bars(market.turbulence, config.turbulence_limit)
        self._all_fillable = bool(market.fillable[self.first : self.last + 1].all())
        self.mandate = active_mandate(mandate)
        self.mandate_table: MandateTable | None = None
        if mandate is not None:
            validate_mandate(mandate, config, market.symbols)
        if self.mandate is not None:
            self.mandate_table = MandateTable(market, self.mandate, bars_per_year(market.times), self.dtype)
        self.extras = account_extras(config, self.mandate)
        self.observation_size = flat_size(market, self.extras.size(self.assets))
        self.reward = StepReward(config)
        self._base_growth = self._base_growth_table() if self.reward.uses_base else None
        self._state: EnvState | None = None
        self._observation: Observation | None = None
        self._starts = torch.empty(0)
        self._native: StepKernel | TritonStep | None = None
        self._gradient: GradientKernel | None = None
        self._uses_kernels = False
        self._reuses_buffers = False
        self._static: EnvState | None = None

    action_size: int
    actions = 0  # number of choices of a discrete action
    # "softmax": scores that become weights; "direct": used unchanged; "tilt": scores of a mandate; "discrete": a choice
    action_kind: str

    @abstractmethod
    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        """Convert actions [P, G, A, action_size] to trades in shares [P, G, A, N] and a priority of buys (or None)."""

    @abstractmethod
    def scale(self, equity: Tensor) -> Tensor | float:
        """Divisor of cash and holdings in the observation; equity: [P, G, A] in currency."""

    def target_weights(self, action: Tensor, tradable: Tensor) -> Tensor:
        """Target weights [P, G, A, N] of actions that can wait under a delay, of the portfolio environment."""
        raise NotImplementedError(f"{type(self).__name__} has no target weights, so its fills cannot be delayed")

    def tilt_scores(self, action: Tensor) -> Tensor:
        """Scores [P, G, A, N] of a mandate from actions [P, G, A, action_size]."""
        return action

    # ---------------------------------------------------------------- VecEnv

    def reset(self, seed: int, *, stagger: bool = True) -> Observation:
        """Start new episodes: draw the windows of every group and set every account to cash.

        stagger: give first episodes a random length: this spreads later resets; False starts with full windows.
        """
        shape = (self.members, self.groups, self.accounts)
        # Drawn on the CPU, so that episodes do not depend on the device.
        starts = [
            self._draw_starts(i, (START_ROUNDS, self.groups), generator)
            for i, generator in enumerate(generators(seed, self.member_ids, "starts"))
        ]
        self._starts = torch.stack(starts).to(self.device)
        lengths = MemberGenerators(generators(seed, self.member_ids, "first episode"))
        offsets = lengths.integers(self.episode_bars if stagger else 1, (self.groups,)).to(self.device)
        bar = self._starts[:, 0] + offsets
        cash = torch.full(shape, self.config.cash, dtype=self.dtype, device=self.device)
        waiting = (*shape, self.venue.delay - 1, self.action_size)
        self._state = EnvState(
            bar,
            self.episode_bars - offsets,
            torch.ones_like(bar),
            cash,
            cash.new_zeros(*shape, self.assets),
            self._initial_reward_state(shape),
            cash.new_full(waiting, torch.nan) if self.venue.delay > 1 else None,
            *self._initial_virtual(shape),
        )
        return self._observe_state()

    def step(self, action: Tensor, out: Tensor | None = None) -> EnvStep:
        """Step all environments by `action` [P, E, action_size]; finished ones are reset in the same call.

        out: optional buffer [P, E, 1 + N + X + N F] to fill with the flat observation (`observation.flat`).
        Raises InputError for an action of another shape, and before the first reset.
        """
        self._check(action)
        assert self._state is not None
        native = self._native
        kernel_rows = None
        if native is not None and can_use_kernel(self._state, action):
            kernel_rows = out if out is not None and native.can_write(out) else None
            bar = self._state.bar
            try:
                self._state, outcome = native(
                    self._state, action, self._starts, RUIN, kernel_rows, reuse=self._reuses_buffers
                )
            except KernelError:  # of a GPU, before anything was written; torch steps from now on
                self._native = None
                return self.step(action, out)
            outcome = self._with_reward(outcome, bar)
        else:
            next_state, outcome = self.transition(self._state, action)
            in_place = self._reuses_buffers and on_device(self.device)
            self._state = self._in_static_tensors(next_state) if in_place else next_state
        if out is not kernel_rows and out is not None:
            flat(self.market, outcome.observation, out=out)
        self._observation = outcome.observation
        return outcome

    def step_differentiable(self, action: Tensor) -> EnvStep:
        """`step` that records gradients of rewards and accounts, also of later steps, with respect to `action`.

        Call `detach` to cut the graph. Equity, turnover and cost have no gradient. Raises InputError as `step`.
        """
        self._check(action)
        assert self._state is not None
        if self._gradient is None:
            self._state, outcome = self.transition(self._state, action)
            self._observation = outcome.observation
            return outcome._replace(
                equity=outcome.equity.detach(), turnover=outcome.turnover.detach(), cost=outcome.cost.detach()
            )
        shape = (self.members, self.groups, self.accounts, -1)
        window_ends = self._state.steps_left <= 1
        next_state, outcome = self._gradient(self._state, action.to(self.dtype).reshape(shape), window_ends, RUIN)
        outcome = self._with_reward(outcome, self._state.bar)
        bar, steps_left, episode_index = self._next_window(next_state, window_ends)
        self._state = next_state._replace(bar=bar, steps_left=steps_left, episode_index=episode_index)
        self._observation = outcome.observation._replace(bar=bar)
        return outcome._replace(observation=self._observation)

    @property
    def can_roll_out(self) -> bool:
        """Whether `roll_out` can be used: on accounts that a kernel steps, and that observe nothing but holdings."""
        is_native = isinstance(self._native, StepKernel) and self.dtype == self.output_dtype
        is_tilted = self.mandate is not None and self.config.kind == "portfolio"
        return is_native and is_tilted and not any(self.extras)

    def roll_out(self, rollout: ctypes.Structure) -> tuple[EnvStep, int]:
        """Let accounts follow a policy along the bars of a `Rollout` of market_rollout.h, in compiled code.

        Returns the results of the last step, as `step` with reused buffers, and the number of steps.
        """
        assert self._state is not None
        assert isinstance(self._native, StepKernel)
        self._state, outcome, steps = self._native.roll_out(self._state, self._starts, RUIN, rollout)
        self._observation = outcome.observation
        return outcome, steps

    def detach(self) -> None:
        """Cut the gradient graph: later steps have no derivative with respect to earlier actions."""
        self._state = _without_graph(self._state)
        self._observation = _without_graph(self._observation)

    def reuse_buffers(self, enabled: bool) -> None:
        """If True, step() overwrites its outputs, and final accounts are filled in for ended episodes only.

        The outputs are two sets of buffers in turn, on a GPU one, shared with the state. For loops that copy what they
        keep: allocating the outputs of a step takes as long as stepping a thousand accounts.
        """
        self._reuses_buffers = enabled

    # ---------------------------------------------------------------- state

    def __getstate__(self) -> Any:
        """What a copy or a pickle holds: no kernels (they have addresses of tables) and no gradient graph."""
        tensors = {"_state": _without_graph(self._state), "_observation": _without_graph(self._observation)}
        return {**vars(self), "_native": None, "_gradient": None, **tensors}

    def __setstate__(self, state: Any) -> None:
        self.__dict__ |= state
        if self._uses_kernels:
            self._use_native()

    @property
    def is_compiled(self) -> bool:
        """Whether `step` runs a kernel; in torch otherwise."""
        return self._native is not None

    @property
    def state(self) -> EnvState | None:
        """Current state, None before the first reset."""
        return self._state

    def set_state(self, state: EnvState) -> Observation:
        """Continue from `state`; returns its observation."""
        self._state = state
        return self._observe_state()

    def checkpoint(self) -> dict[str, Tensor]:
        """State and current observation: name -> tensor. Raises InputError before the first reset."""
        if self._state is None or self._observation is None:
            raise InputError("call reset(seed) before checkpoint()")
        state = {name: x for name, x in self._state._asdict().items() if x is not None}
        return {**state, **{f"observation.{i}": x for i, x in enumerate(self._observation)}}

    def resume(self, state: Mapping[str, Tensor]) -> Observation:
        """Continue from `checkpoint` of an environment with the same arguments; returns the current observation.

        Raises KeyError for a missing entry, InputError before the first reset.
        """
        current = self.checkpoint()
        saved_state = {name: state[name].to(x) for name, x in current.items()}
        if on_device(self.device):  # a captured graph reads and writes the tensors that are there
            for name, x in current.items():
                x.copy_(saved_state[name])
            saved_state = current
        self._observation = Observation(saved_state.pop("observation.0"), saved_state.pop("observation.1"))
        self._state = EnvState(**{"reward_state": None, **saved_state})  # type: ignore[arg-type]
        return self._observation

    def _checked_starts(self, starts: Sequence[Tensor]) -> list[Tensor]:
        if len(starts) != self.members:
            raise ConfigError(f"starts must list the start bars of {self.members} members, got {len(starts)} lists")
        top = self.last - self.episode_bars + 1
        for member, bars in zip(self.member_ids, starts, strict=True):
            if not len(bars) or int(bars.min()) < self.first or int(bars.max()) > top:
                raise ConfigError(
                    f"starts of member {member} must be one or more bars from {self.first} to {top}, which leave a "
                    f"window of {self.episode_bars} bars, got {bars.tolist()[:8]}"
                )
        return [bars.cpu() for bars in starts]

    def _draw_starts(self, member: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Start bars of this size for the member at this index."""
        if self._allowed_starts is None:
            return torch.randint(self.first, self.last - self.episode_bars + 2, size, generator=generator)
        start_bars = self._allowed_starts[member]
        return start_bars[torch.randint(len(start_bars), size, generator=generator)]

    def _observe_state(self) -> Observation:
        assert self._state is not None
        self._observation = self.observe(self._state)
        return self._observation

    def _in_static_tensors(self, state: EnvState) -> EnvState:
        """The state, copied to tensors that stay the same in all steps, as a captured graph needs them."""
        if self._static is None:
            self._static = EnvState(*(None if x is None else x.clone() for x in state))  # type: ignore[arg-type]
        for x, next_value in zip(self._static, state, strict=True):
            if x is not None and next_value is not None:
                x.copy_(next_value)
        return self._static

    def _check(self, action: Tensor) -> None:
        if self._state is None:
            raise InputError("call reset(seed) before step(action)")
        expected_shape = (self.members, self.envs, self.action_size)
        if tuple(action.shape) != expected_shape:
            raise InputError(
                f"an action must have shape {expected_shape} (members, envs, action), got {tuple(action.shape)}"
            )

    def _with_reward(self, outcome: EnvStep, bar: Tensor) -> EnvStep:
        """Outcome of a kernel (its reward is log growth or the change of equity) with the reward of the settings."""
        if self.reward.is_kernel_output:
            return outcome
        growth = outcome.reward.view(self.members, self.groups, self.accounts)
        base = torch.zeros_like(growth) if self._base_growth is None else self._base_growth[bar].unsqueeze(-1)
        reward = self.reward.of_log_growth(growth, base.expand_as(growth))
        return outcome._replace(reward=reward.view_as(outcome.reward).to(self.output_dtype))

    def _use_native(self) -> None:
        """Load the compiled kernels; they implement `trades` and `scale` of the built-in classes."""
        self._uses_kernels = True
        if self.reward.kernel is None:
            return
        make = make_device_step if on_device(self.device) else make_step_kernel
        self._native = make(self, START_ROUNDS)
        self._gradient = make_gradient_kernel(self)

    # ---------------------------------------------------------------- pure functions

    def transition(self, state: EnvState, action: Tensor) -> tuple[EnvState, EnvStep]:
        """One step as a pure function of state and action; differentiable and compilable."""
        p = self.members
        g = self.groups
        a = self.accounts
        bar, next_bar = state.bar, state.bar + 1
        close = self.close[bar].unsqueeze(2)
        fill = self.fill[bar].unsqueeze(2)  # [P, G, 1, N]
        close_next = self.close[next_bar].unsqueeze(2)
        fill_next = self.fill[next_bar].unsqueeze(2)
        action = action.to(self.dtype).reshape(p, g, a, -1)
        pending = state.pending
        decision = None if self.mandate_table is None else self._decide(self.mandate_table, action, state, close)
        if decision is not None:
            trades, pending, priority = *self._mandate_trades(decision, state, close), None
        elif pending is None:
            tradable = self.market.tradable[bar].unsqueeze(2)
            trades, priority = self.trades(action, state, close, tradable)
        else:
            action, pending = pending[..., 0, :], torch.cat([pending[..., 1:, :], action.unsqueeze(-2)], -2)
            trades, priority = self._delayed_trades(action, state, close)
        trades = self._allowed_trades(trades, state, bar)
        if self.rules.limited:  # positions that cannot fill still count as exposure
            trades = self.venue.limit_to_volume(bar, trades)
            trades = limit_gross_exposure(trades, state.cash, state.shares, close, self.rules.leverage)
        cash = state.cash if self.venue.same_close else self.venue.overnight(bar, state.cash, state.shares, close)
        before = account_equity(cash, state.shares, fill)
        filled = self.venue.fill_trades(bar, cash, state.shares, trades, fill, priority)
        # A reward includes the carry between its two fills, whichever bar charges it.
        if self.venue.same_close:
            filled = filled._replace(cash=self.venue.overnight(bar, filled.cash, filled.shares, close))
            cash_after_carry = filled.cash
        else:
            cash_after_carry = self.venue.overnight(next_bar, filled.cash, filled.shares, close_next)
        after = account_equity(cash_after_carry, filled.shares, fill_next)
        equity = account_equity(filled.cash, filled.shares, close_next)
        turnover = filled.traded / before.clamp(min=1e-9)
        base_growth = torch.zeros_like(before) if self._base_growth is None else self._base_growth[bar].unsqueeze(-1)
        before_state = None if state.reward_state is None else state.reward_state[0]
        reward = self.reward(Interval(before, after, turnover, base_growth.expand_as(before)), before_state)
        reward_state = None
        if before_state is not None:  # at the end of the interval, and as known at the close between its two fills
            reward_state = torch.stack([self.reward.state.advance(before, x, before_state) for x in (after, equity)])
        is_ruined = equity <= RUIN * self.config.cash
        steps_left = state.steps_left - 1
        window_ends = steps_left <= 0  # [P, G]
        virtual, budget = self._next_virtual(decision, close_next / close)
        next_state = EnvState(
            next_bar,
            steps_left,
            state.episode_index,
            filled.cash,
            filled.shares,
            reward_state,
            pending,
            virtual,
            budget,
        )
        after_reset = self._reset_where(next_state, window_ends, is_ruined)
        flat = (p, g * a)
        outcome = EnvStep(
            observation=self.observe(after_reset),
            reward=reward.reshape(flat).to(self.output_dtype),
            terminated=is_ruined.reshape(flat),
            truncated=(window_ends.unsqueeze(-1) & ~is_ruined).reshape(flat),
            final_observation=self.observe(next_state, equity),
            equity=equity.reshape(flat).to(self.output_dtype),
            turnover=turnover.reshape(flat).to(self.output_dtype),
            cost=filled.cost.reshape(flat).to(self.output_dtype),
        )
        return after_reset, outcome

    def observe(self, state: EnvState, equity: Tensor | None = None) -> Observation:
        """Observation of a state: bar, and account at the close of that bar: cash, holdings, and extras.

        equity: [P, G, A] in currency, if known.
        """
        close = self.close[state.bar].unsqueeze(2)
        values = state.shares * close
        equity = state.cash + values.sum(-1) if equity is None else equity
        account = torch.cat([state.cash.unsqueeze(-1), values], -1) / self.scale(equity)
        if any(self.extras):  # see `market.account_extras`
            weights = values / equity.clamp(min=1e-9).unsqueeze(-1)
            reward_state = None if state.reward_state is None else self.reward.state.observed(state.reward_state[1])
            virtual = state.virtual if observes_virtual(self.config, self.mandate) else None
            pending = self._pending_weights(state)
            extras = joined_extras(weights, pending, virtual, reward_state, state.budget, self.mandate)
            account = torch.cat([account, extras], -1)
        account = account.reshape(self.members, self.envs, -1)
        return Observation(state.bar, account.to(self.output_dtype))

    def _pending_weights(self, state: EnvState) -> list[Tensor]:
        """Target weights [P, G, A, N] that wait under the delay, oldest first; NaN where nothing will be traded."""
        if state.pending is None:
            return []
        waiting = self.venue.delay - 1
        weights = []
        for i, target in enumerate(state.pending.unbind(-2)):
            decision_bar = (state.bar - waiting + i).clamp(min=0)
            has_target = ~torch.isnan(target)
            if self.mandate is None:
                has_target = has_target.all(-1, keepdim=True)
                action = torch.where(has_target, target, 0.0)
                target = self.target_weights(action, self.market.tradable[decision_bar].unsqueeze(2))
            if self.turbulent is not None:
                target = torch.where(self.turbulent[decision_bar][..., None, None], 0.0, target)
            weights.append(torch.where(has_target, target, torch.nan))
        return weights

    def _allowed_trades(self, trades: Tensor, state: EnvState, bar: Tensor) -> Tensor:
        """Apply the market limits: unfillable trades are 0; delisted assets, and all in turbulent bars, are sold."""
        if not self._all_fillable:
            fillable = self.market.fillable[bar].unsqueeze(2)
            delisted = self.market.delisted[bar].unsqueeze(2)
            trades = torch.where(fillable, trades, torch.where(delisted, -state.shares, torch.zeros_like(trades)))
        if self.turbulent is not None:
            decision_bar = (bar - (self.venue.delay - 1)).clamp(min=0)  # delayed like any other decision
            turbulent = self.turbulent[decision_bar][..., None, None]
            exit_trades = -state.shares if self._all_fillable else torch.where(fillable | delisted, -state.shares, 0)
            trades = torch.where(turbulent, exit_trades, trades)
        return trades

    def _reset_where(self, state: EnvState, window_ends: Tensor, is_ruined: Tensor) -> EnvState:
        """Move groups whose window has ended to their next one; reset their accounts, and ruined ones, to cash."""
        needs_reset = window_ends.unsqueeze(-1) | is_ruined  # [P, G, A]
        asset_mask = needs_reset.unsqueeze(-1)
        first = self._initial_reward_state(tuple(needs_reset.shape))
        reward_state = state.reward_state
        if reward_state is not None and first is not None:
            reward_state = torch.where(asset_mask, first, reward_state)
        return EnvState(
            *self._next_window(state, window_ends),
            torch.where(needs_reset, self.config.cash, state.cash),
            torch.where(asset_mask, 0.0, state.shares),
            reward_state,
            None if state.pending is None else torch.where(asset_mask.unsqueeze(-1), torch.nan, state.pending),
            None if state.virtual is None else torch.where(asset_mask, 0.0, state.virtual),
            None if state.budget is None else torch.where(needs_reset, self._full_budget, state.budget),
        )

    def _next_window(self, state: EnvState, window_ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next bar, steps left and episode index, [P, G] each. window_ends: [P, G] bool, groups whose window ended."""
        start = self._starts.gather(1, (state.episode_index % START_ROUNDS).unsqueeze(1)).squeeze(1)
        return (
            torch.where(window_ends, start, state.bar),
            torch.where(window_ends, self.episode_bars, state.steps_left),
            state.episode_index + window_ends,
        )

    def _delayed_trades(self, action: Tensor, state: EnvState, close: Tensor) -> tuple[Tensor, Tensor | None]:
        """Trades of an action decided `delay - 1` bars ago; 0 where there is none."""
        has_target = ~torch.isnan(action)  # -inf is a valid score
        decision_bar = (state.bar - (self.venue.delay - 1)).clamp(min=0)
        tradable = self.market.tradable[decision_bar].unsqueeze(2)
        trades, priority = self.trades(torch.where(has_target, action, 0.0), state, close, tradable)
        return torch.where(has_target.all(-1, keepdim=True), trades, 0.0), priority

    def _decide(self, table: MandateTable, action: Tensor, state: EnvState, close: Tensor) -> Decision:
        """Target weights [P, G, A, N] of an action under the mandate, and what is left of its budget."""
        assert state.virtual is not None
        values = state.shares * close
        weights = values / (state.cash + values.sum(-1)).clamp(min=1e-9).unsqueeze(-1)
        scores = self.tilt_scores(action)
        return table.decide(state.bar, scores, weights, state.virtual, state.budget, self.config.leverage)

    def _mandate_trades(self, decision: Decision, state: EnvState, close: Tensor) -> tuple[Tensor, Tensor | None]:
        """Trades [P, G, A, N] of a decision, or of the oldest pending one; and the pending target weights."""
        weights = torch.where(decision.trades, decision.weights, torch.nan)
        pending = state.pending
        if pending is not None:
            weights, pending = pending[..., 0, :], torch.cat([pending[..., 1:, :], weights.unsqueeze(-2)], -2)
        has_target = ~torch.isnan(weights)
        trades = trades_to_weights(torch.where(has_target, weights, 0.0), state.cash, state.shares, close)
        return torch.where(has_target, trades, 0.0), pending

    def _next_virtual(self, decision: Decision | None, price_relatives: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Virtual holdings and turnover budget at the next close. price_relatives: [P, G, 1, N], next close / close."""
        if decision is None or self.mandate_table is None:
            return None, None
        table = self.mandate_table
        budget = decision.budget
        budget = None if budget is None else replenish_budget(budget, 1, table.config, table.bars_per_year)
        return drift(decision.virtual, price_relatives), budget

    @property
    def _full_budget(self) -> float:
        return 0.0 if self.mandate is None else initial_budget(self.mandate)

    def _initial_virtual(self, shape: tuple[int, int, int]) -> tuple[Tensor | None, Tensor | None]:
        if self.mandate is None:
            return None, None
        virtual = torch.zeros(*shape, self.assets, dtype=self.dtype, device=self.device)
        if not self.mandate.max_turnover:
            return virtual, None
        return virtual, torch.full(shape, self._full_budget, dtype=self.dtype, device=self.device)

    def _initial_reward_state(self, shape: tuple[int, ...]) -> Tensor | None:
        """[2, P, G, A, S] of new accounts, None for a reward without state."""
        first = self.reward.state.initial(shape, self.dtype, self.device)
        return None if first is None else torch.stack([first, first])

    def _base_growth_table(self) -> Tensor:
        """[T] log growth of the base portfolio from the fill of each decision to the next, without costs."""
        table = self.mandate_table
        dividends = self.market.dividends
        growth = torch.zeros(len(self.fill), dtype=self.dtype, device=self.device)
        for first in range(0, len(growth) - 1, TABLE_ROWS):
            rows = slice(first, min(first + TABLE_ROWS, len(growth) - 1))
            next_rows = slice(rows.start + 1, rows.stop + 1)
            base = equal_base(self.market.tradable[rows]).to(self.dtype) if table is None else table.base[rows]
            returns = self.fill[next_rows] / self.fill[rows] - 1
            if dividends is not None:
                payments = dividends[rows if self.venue.same_close else next_rows].to(self.dtype)
                returns = returns + payments / self.fill[rows]
            growth[rows] = torch.log1p((base * returns).sum(-1).clamp(min=MIN_GROWTH - 1))
        return growth


def _without_graph(record: Record | None) -> Record | None:
    """A record of tensors without their gradient graph."""
    if record is None:
        return None
    return type(record)(*(None if x is None else x.detach() for x in record))  # type: ignore[arg-type]


def _check_config(config: EnvironmentConfig, market: MarketTensor) -> None:
    """Raises ConfigError for a setting out of range or incompatible with the market."""
    check_settings("environment.", config)
    if (config.fill == "same_close") != (market.fill_rule == "same_close"):
        raise ConfigError(
            f"environment.fill is {config.fill!r} but the market was built for fills at {market.fill_rule!r}; "
            "build the market with the same rule"
        )
    if config.delay > 1 and config.kind != "portfolio":
        raise ConfigError(
            f'environment.delay above 1 needs environment.kind = "portfolio", got {config.kind!r}: a backtest delays '
            "target weights, not numbers of shares; set delay = 1"
        )
    if config.turbulence_limit > 0 and market.turbulence is None:
        raise ConfigError("environment.turbulence_limit needs a market with turbulence; set it to 0 or add the feature")

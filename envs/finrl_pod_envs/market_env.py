"""Base class of market environments: windows, accounts, fills, rewards, auto-reset.

The state is a day for each group of environments and an account for each environment; all read the same market table.
Subclasses convert actions to share trades and define the units in which the account is observed.

Shapes: [P, G] for groups, [P, G, A] for accounts, [P, G, A, N] for holdings. The public methods take and return
[P, E] and [P, E, N] with E = G * A.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch

from finrl_pod.data.turbulence import turbulent_bars
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.market.account_extras import account_extras, joined_extras, observes_virtual
from finrl_pod.market.execution import equity, limit_gross_exposure, trades_to_weights
from finrl_pod.market.mandate import (
    Decision,
    MandateTable,
    active,
    drift,
    equal_base,
    initial_budget,
    replenished,
    validate_mandate,
)
from finrl_pod.market.reward_state import MIN_GROWTH
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.random import generators
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import EnvStep, MarketTensor, Observation, Tensor
from finrl_pod_envs.market_kernels import (
    GradientKernel,
    StepKernel,
    can_use_kernel,
    make_gradient_kernel,
    make_step_kernel,
)
from finrl_pod_envs.observation import flat, flat_size
from finrl_pod_envs.rewards import Interval, StepReward
from finrl_pod_envs.state import EnvState

RUIN = 0.01  # an account at or below this fraction of its starting cash is ruined: its episode terminates
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

        config: its `kind` is replaced by that of the class. members: ids that key the random streams of the P members.
        envs, group: override the config's.
        starts: for each member, [K] int64 bars at which its episodes start, each as likely as the others; None: every
        bar that leaves a full window.
        dtype: of accounts and of step's outputs; None: float32, but accounts are float64 with sequential buys in whole
        shares, where one share flipped by rounding would change every later purchase.
        mandate: bounds on what an agent may hold and trade; None or base "none": unconstrained. Raises ConfigError for
        settings that are out of range, in conflict, or do not fit the market.
        """
        config = config or EnvironmentConfig()
        if self.KIND is not None:
            config = dataclasses.replace(config, kind=self.KIND)
        _check_config(config, market)
        self.market, self.config = market, config
        exact = config.whole_shares and config.buy_allocation == "sequential"
        self.dtype = dtype or (torch.float64 if exact else torch.float32)
        self.output_dtype = dtype or torch.float32
        self.member_ids = tuple(members)
        self.members, self.envs = len(self.member_ids), envs or config.envs
        self.accounts = group or min(config.group, self.envs)
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
        self.window = min(config.window, self.last - self.first + 1)
        self._allowed_starts = None if starts is None else self._checked_starts(starts)
        self.rules = rules_of(config)
        self.venue = Venue(market, self.rules, self.dtype)
        self.close = market.close.to(self.dtype)
        self.fill = self.venue.fill
        self.turbulent = turbulent_bars(market.turbulence, config.turbulence_limit)
        self._all_fillable = bool(market.fillable[self.first : self.last + 1].all())
        self.mandate = active(mandate)
        self.mandate_table: MandateTable | None = None
        if self.mandate is not None:
            validate_mandate(self.mandate, config, self.assets)
            self.mandate_table = MandateTable(market, self.mandate, bars_per_year(market.times), self.dtype)
        self.extras = account_extras(config, self.mandate)
        self.observation_size = flat_size(market, self.extras.size(self.assets))
        self.reward = StepReward(config, bars_per_year(market.times))
        self._base_growth = self._base_growth_table() if self.reward.uses_base else None
        self._state: EnvState | None = None
        self._observation: Observation | None = None
        self._starts = torch.empty(0)
        self._native: StepKernel | None = None
        self._gradient: GradientKernel | None = None
        self._reuses_buffers = False

    action_size: int
    actions = 0  # number of choices of a discrete action
    # "softmax": scores that become weights; "direct": used unchanged; "tilt": scores of a mandate; "discrete": a choice
    action_kind: str

    @abstractmethod
    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        """Convert actions [P, G, A, action_size] to trades in shares [P, G, A, N] and a priority of buys (or None)."""

    @abstractmethod
    def scale(self, worth: Tensor) -> Tensor | float:
        """Divisor of cash and holdings in the observation; worth: equity [P, G, A] in currency."""

    def target_weights(self, action: Tensor, tradable: Tensor) -> Tensor:
        """Target weights [P, G, A, N] of actions that can wait under a delay: those of the portfolio environment."""
        raise NotImplementedError(f"{type(self).__name__} has no target weights, so its fills cannot be delayed")

    def tilt_scores(self, action: Tensor) -> Tensor:
        """Scores [P, G, A, N] of a mandate from actions [P, G, A, action_size]."""
        return action

    # ---------------------------------------------------------------- VecEnv

    def reset(self, seed: int, *, stagger: bool = True) -> Observation:
        """Start new episodes: draw every group's windows and set every account to cash.

        stagger: give first episodes a random length, which spreads later resets; False starts with full windows.
        """
        p, g, a = self.members, self.groups, self.accounts
        # Drawn on the CPU, so that episodes do not depend on the device.
        starts = [
            self._draw_starts(i, (START_ROUNDS, g), stream)
            for i, stream in enumerate(generators(seed, self.member_ids, "starts"))
        ]
        self._starts = torch.stack(starts).to(self.device)
        lengths = [
            torch.randint(0, self.window if stagger else 1, (g,), generator=stream)
            for stream in generators(seed, self.member_ids, "first episode")
        ]
        offsets = torch.stack(lengths).to(self.device)
        day = self._starts[:, 0] + offsets
        self._state = EnvState(
            day,
            self.window - offsets,
            torch.ones_like(day),
            torch.full((p, g, a), self.config.cash, dtype=self.dtype, device=self.device),
            torch.zeros(p, g, a, self.assets, dtype=self.dtype, device=self.device),
            self._initial_memory((p, g, a)),
            self._no_pending_actions((p, g, a)),
            *self._initial_virtual((p, g, a)),
        )
        return self._observe_state()

    def step(self, action: Tensor, rows: Tensor | None = None) -> EnvStep:
        """Step all environments by `action` [P, E, action_size]; finished ones are reset in the same call.

        rows: optional buffer [P, E, 1 + N + X + N F] to fill with the flat observation (`observation.flat`).
        Raises InputError for an action of another shape, and before the first reset.
        """
        self._check(action)
        assert self._state is not None
        native = self._native
        if native is not None and can_use_kernel(self._state, action):
            inside = rows if rows is not None and native.can_write(rows) else None
            day = self._state.day
            self._state, outcome = native(self._state, action, self._starts, RUIN, inside, reuse=self._reuses_buffers)
            outcome = self._with_reward(outcome, day)
        else:
            inside = None
            self._state, outcome = self.transition(self._state, action)
        if rows is not inside and rows is not None:
            flat(self.market, outcome.observation, out=rows)
        self._observation = outcome.observation
        return outcome

    def step_differentiable(self, action: Tensor) -> EnvStep:
        """`step` that records gradients: rewards and accounts, also of later steps, can be differentiated by `action`.

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
        over = self._state.left <= 1
        reached, outcome = self._gradient(self._state, action.to(self.dtype).reshape(shape), over, RUIN)
        outcome = self._with_reward(outcome, self._state.day)
        day, left, rounds = self._next_window(reached, over)
        self._state = reached._replace(day=day, left=left, round=rounds)
        self._observation = outcome.observation._replace(day=day)
        return outcome._replace(observation=self._observation)

    def detach(self) -> None:
        """Cut the gradient graph: later steps have no derivative by earlier actions."""
        if self._state is not None:
            self._state = EnvState(*(None if x is None else x.detach() for x in self._state))  # type: ignore[arg-type]
        if self._observation is not None:
            self._observation = Observation(*(x.detach() for x in self._observation))

    def reuse_buffers(self, enabled: bool) -> None:
        """If True, step() alternates between two sets of output buffers, and final accounts are filled in for ended
        episodes only.

        For loops that copy what they keep: allocating the outputs of a step takes as long as stepping a thousand
        accounts.
        """
        self._reuses_buffers = enabled

    # ---------------------------------------------------------------- state

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
        saved = {name: state[name].to(x) for name, x in self.checkpoint().items()}
        self._observation = Observation(saved.pop("observation.0"), saved.pop("observation.1"))
        self._state = EnvState(**{"memory": None, **saved})  # type: ignore[arg-type]
        return self._observation

    def _checked_starts(self, starts: Sequence[Tensor]) -> list[Tensor]:
        if len(starts) != self.members:
            raise ConfigError(f"starts must list the start bars of {self.members} members, got {len(starts)} lists")
        top = self.last - self.window + 1
        for member, bars in zip(self.member_ids, starts, strict=True):
            if not len(bars) or int(bars.min()) < self.first or int(bars.max()) > top:
                raise ConfigError(
                    f"starts of member {member} must be one or more bars from {self.first} to {top}, which leave a "
                    f"window of {self.window} bars, got {bars.tolist()[:8]}"
                )
        return [bars.cpu() for bars in starts]

    def _draw_starts(self, member: int, size: tuple[int, int], stream: torch.Generator) -> Tensor:
        """Start bars of this size for the member at this index."""
        if self._allowed_starts is None:
            return torch.randint(self.first, self.last - self.window + 2, size, generator=stream)
        allowed = self._allowed_starts[member]
        return allowed[torch.randint(len(allowed), size, generator=stream)]

    def _observe_state(self) -> Observation:
        assert self._state is not None
        self._observation = self.observe(self._state)
        return self._observation

    def _check(self, action: Tensor) -> None:
        if self._state is None:
            raise InputError("call reset(seed) before step(action)")
        expected = (self.members, self.envs, self.action_size)
        if tuple(action.shape) != expected:
            raise InputError(f"an action must have shape {expected} (members, envs, action), got {tuple(action.shape)}")

    def _with_reward(self, outcome: EnvStep, day: Tensor) -> EnvStep:
        """Outcome of a kernel, whose reward is log growth or the change of equity, with the reward of the settings."""
        if self.reward.is_plain:
            return outcome
        growth = outcome.reward.view(self.members, self.groups, self.accounts)
        base = torch.zeros_like(growth) if self._base_growth is None else self._base_growth[day].unsqueeze(-1)
        reward = self.reward.of_growth(growth, outcome.turnover.view_as(growth), base)
        return outcome._replace(reward=reward.view_as(outcome.reward).to(self.output_dtype))

    def _use_native(self) -> None:
        """Load the compiled kernels; for built-in classes, whose `trades` and `scale` they implement."""
        if not (self.reward.is_plain or self.reward.growth_only):
            return
        self._native, self._gradient = make_step_kernel(self, START_ROUNDS), make_gradient_kernel(self)

    # ---------------------------------------------------------------- pure functions

    def transition(self, state: EnvState, action: Tensor) -> tuple[EnvState, EnvStep]:
        """One step as a pure function of state and action; differentiable and compilable."""
        p, g, a = self.members, self.groups, self.accounts
        day, nxt = state.day, state.day + 1
        close, fill = self.close[day].unsqueeze(2), self.fill[day].unsqueeze(2)  # [P, G, 1, N]
        close_next, fill_next = self.close[nxt].unsqueeze(2), self.fill[nxt].unsqueeze(2)
        action, pending = action.to(self.dtype).reshape(p, g, a, -1), state.pending
        decision = None if self.mandate_table is None else self._decide(self.mandate_table, action, state, close)
        if decision is not None:
            trades, pending, priority = *self._mandate_trades(decision, state, close), None
        elif pending is None:
            tradable = self.market.tradable[day].unsqueeze(2)
            trades, priority = self.trades(action, state, close, tradable)
        else:
            action, pending = pending[..., 0, :], torch.cat([pending[..., 1:, :], action.unsqueeze(-2)], -2)
            trades, priority = self._delayed_trades(action, state, close)
        trades = self._allowed(trades, state, day)
        if self.rules.limited:  # positions that cannot fill still count as exposure
            trades = self.venue.limit_to_volume(day, trades)
            trades = limit_gross_exposure(trades, state.cash, state.shares, close, self.rules.leverage)
        cash = state.cash if self.venue.same_close else self.venue.overnight(day, state.cash, state.shares, close)
        before = equity(cash, state.shares, fill)
        filled = self.venue.fill_trades(day, cash, state.shares, trades, fill, priority)
        if self.venue.carries:  # a reward includes the carry between its two fills, whichever bar charges it
            if self.venue.same_close:
                filled = filled._replace(cash=self.venue.overnight(day, filled.cash, filled.shares, close))
                carried = filled.cash
            else:
                carried = self.venue.overnight(nxt, filled.cash, filled.shares, close_next)
            after = equity(carried, filled.shares, fill_next)
        else:
            after = equity(filled.cash, filled.shares, fill_next)
        worth = equity(filled.cash, filled.shares, close_next)
        turnover = filled.traded / before.clamp(min=1e-9)
        growth = torch.zeros_like(before) if self._base_growth is None else self._base_growth[day].unsqueeze(-1)
        before_state = None if state.memory is None else state.memory[0]
        gain = self.reward(Interval(before, after, turnover, growth.expand_as(before)), before_state)
        memory = self._next_memory(before, after, worth, before_state)
        ruined = worth <= RUIN * self.config.cash
        left = state.left - 1
        over = left <= 0  # [P, G]
        virtual, budget = self._next_virtual(decision, close_next / close)
        reached = EnvState(nxt, left, state.round, filled.cash, filled.shares, memory, pending, virtual, budget)
        fresh = self._reset_where(reached, over, ruined)
        flat = (p, g * a)
        outcome = EnvStep(
            observation=self.observe(fresh),
            reward=gain.reshape(flat).to(self.output_dtype),
            terminated=ruined.reshape(flat),
            truncated=(over.unsqueeze(-1) & ~ruined).reshape(flat),
            final_observation=self.observe(reached, worth),
            equity=worth.reshape(flat).to(self.output_dtype),
            turnover=turnover.reshape(flat).to(self.output_dtype),
            cost=filled.cost.reshape(flat).to(self.output_dtype),
        )
        return fresh, outcome

    def observe(self, state: EnvState, worth: Tensor | None = None) -> Observation:
        """Observation of a state: day, and account at the close of that bar: cash, holdings, and extras.

        worth: its equity, if known.
        """
        close = self.close[state.day].unsqueeze(2)
        values = state.shares * close
        worth = state.cash + values.sum(-1) if worth is None else worth
        account = torch.cat([state.cash.unsqueeze(-1), values], -1) / self.scale(worth)
        if any(self.extras):
            account = torch.cat(
                [account, self._observed_extras(state, values / worth.clamp(min=1e-9).unsqueeze(-1))], -1
            )
        account = account.reshape(self.members, self.envs, -1)
        return Observation(state.day, account.to(self.output_dtype))

    def _observed_extras(self, state: EnvState, held: Tensor) -> Tensor:
        """Extras [P, G, A, X] of a state (`market.account_extras`). held: [P, G, A, N] weights."""
        memory = None if state.memory is None else self.reward.memory.observed(state.memory[1])
        virtual = state.virtual if observes_virtual(self.config, self.mandate) else None
        return joined_extras(held, self._pending_weights(state), virtual, memory, state.budget, self.mandate)

    def _pending_weights(self, state: EnvState) -> list[Tensor]:
        """Target weights [P, G, A, N] that wait under the delay, oldest first; NaN where nothing will be traded."""
        if state.pending is None:
            return []
        waiting, weights = self.venue.delay - 1, []
        for i, target in enumerate(state.pending.unbind(-2)):
            decided = (state.day - waiting + i).clamp(min=0)
            known = ~torch.isnan(target)
            if self.mandate is None:
                known = known.all(-1, keepdim=True)
                action = torch.where(known, target, 0.0)
                target = self.target_weights(action, self.market.tradable[decided].unsqueeze(2))
            if self.turbulent is not None:
                target = torch.where(self.turbulent[decided][..., None, None], 0.0, target)
            weights.append(torch.where(known, target, torch.nan))
        return weights

    def _allowed(self, trades: Tensor, state: EnvState, day: Tensor) -> Tensor:
        """Apply the market's limits: unfillable trades are 0; delisted assets, and all in turbulent bars, are sold."""
        if not self._all_fillable:
            fillable, ended = self.market.fillable[day].unsqueeze(2), self.market.ended[day].unsqueeze(2)
            trades = torch.where(fillable, trades, torch.where(ended, -state.shares, torch.zeros_like(trades)))
        if self.turbulent is not None:
            decided = (day - (self.venue.delay - 1)).clamp(min=0)  # delayed like any other decision
            turbulent = self.turbulent[decided][..., None, None]
            sold = -state.shares if self._all_fillable else torch.where(fillable | ended, -state.shares, 0)
            trades = torch.where(turbulent, sold, trades)
        return trades

    def _reset_where(self, state: EnvState, over: Tensor, ruined: Tensor) -> EnvState:
        """Move groups whose window is over to their next one; reset their accounts, and ruined ones, to cash."""
        day, left, rounds = self._next_window(state, over)
        again = over.unsqueeze(-1) | ruined  # [P, G, A]
        first, memory = self._initial_memory(tuple(again.shape)), state.memory
        memory = memory if memory is None or first is None else torch.where(again.unsqueeze(-1), first, memory)
        pending = None if state.pending is None else torch.where(again[..., None, None], torch.nan, state.pending)
        return EnvState(
            day,
            left,
            rounds,
            torch.where(again, self.config.cash, state.cash),
            torch.where(again.unsqueeze(-1), 0.0, state.shares),
            memory,
            pending,
            None if state.virtual is None else torch.where(again.unsqueeze(-1), 0.0, state.virtual),
            None if state.budget is None else torch.where(again, self._full_budget, state.budget),
        )

    def _next_window(self, state: EnvState, over: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next day, steps left and round, [P, G] each. over: [P, G] bool, groups whose window has ended."""
        start = self._starts.gather(1, (state.round % START_ROUNDS).unsqueeze(1)).squeeze(1)
        return torch.where(over, start, state.day), torch.where(over, self.window, state.left), state.round + over

    def _delayed_trades(self, action: Tensor, state: EnvState, close: Tensor) -> tuple[Tensor, Tensor | None]:
        """Trades of an action decided `delay - 1` bars ago; 0 where there is none."""
        known = ~torch.isnan(action)  # -inf is a valid score
        decided = (state.day - (self.venue.delay - 1)).clamp(min=0)
        tradable = self.market.tradable[decided].unsqueeze(2)
        trades, priority = self.trades(torch.where(known, action, 0.0), state, close, tradable)
        return torch.where(known.all(-1, keepdim=True), trades, 0.0), priority

    def _decide(self, table: MandateTable, action: Tensor, state: EnvState, close: Tensor) -> Decision:
        """Target weights [P, G, A, N] of an action under the mandate, and what is left of its budget."""
        assert state.virtual is not None
        values = state.shares * close
        held = values / (state.cash + values.sum(-1)).clamp(min=1e-9).unsqueeze(-1)
        scores = self.tilt_scores(action)
        return table.decide(state.day, scores, held, state.virtual, state.budget, self.config.leverage)

    def _mandate_trades(self, decision: Decision, state: EnvState, close: Tensor) -> tuple[Tensor, Tensor | None]:
        """Trades [P, G, A, N] of a decision, or of the oldest pending one; and the pending target weights."""
        weights, pending = torch.where(decision.trades, decision.weights, torch.nan), state.pending
        if pending is not None:
            weights, pending = pending[..., 0, :], torch.cat([pending[..., 1:, :], weights.unsqueeze(-2)], -2)
        known = ~torch.isnan(weights)
        trades = trades_to_weights(torch.where(known, weights, 0.0), state.cash, state.shares, close)
        return torch.where(known, trades, 0.0), pending

    def _next_virtual(self, decision: Decision | None, growth: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Virtual holdings and turnover budget at the next close. growth: [P, G, 1, N] of closes."""
        if decision is None or self.mandate_table is None:
            return None, None
        table, budget = self.mandate_table, decision.budget
        budget = None if budget is None else replenished(budget, 1, table.config, table.bars_per_year)
        return drift(decision.weights, growth), budget

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

    def _no_pending_actions(self, shape: tuple[int, int, int]) -> Tensor | None:
        if self.venue.delay == 1:
            return None
        size = (*shape, self.venue.delay - 1, self.action_size)
        return torch.full(size, torch.nan, dtype=self.dtype, device=self.device)

    def _initial_memory(self, shape: tuple[int, ...]) -> Tensor | None:
        """[2, P, G, A, S] of new accounts, None for a reward without state."""
        first = self.reward.memory.initial(shape, self.dtype, self.device)
        return None if first is None else torch.stack([first, first])

    def _next_memory(self, before: Tensor, after: Tensor, worth: Tensor, state: Tensor | None) -> Tensor | None:
        """The reward's state at the interval's end, and as known at the close between its two fills."""
        if state is None:
            return None
        advance = self.reward.memory.advance
        return torch.stack([advance(before, after, state), advance(before, worth, state)])

    def _base_growth_table(self) -> Tensor:
        """[T] log growth of the base portfolio from the fill of each bar's decision to the next, without costs."""
        table = self.mandate_table
        base = equal_base(self.market.tradable).to(self.dtype) if table is None else table.base
        growth = torch.zeros(len(base), dtype=self.dtype, device=self.device)
        returns = self.fill[1:] / self.fill[:-1] - 1
        growth[:-1] = torch.log1p((base[:-1] * returns).sum(-1).clamp(min=MIN_GROWTH - 1))
        return growth


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

"""The step of a market environment as one Triton kernel: a program steps the accounts of one group.

`MarketEnv.transition` in torch is the definition, `tests/gpu/test_triton_step.py` compares the two. Rules that the
kernel lacks (sequential buys, frictions beyond proportional costs, shorts, limits on estimated risk) step in torch.
Imported only where Triton is installed.
"""

# Triton has no type hints, and its kernels take none.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

import weakref

import torch
import triton
import triton.language as tl

from finrl_pod.market.account_extras import observes_virtual
from finrl_pod.market.mandate import initial_budget
from finrl_pod.market.rewards import CHANGE_SCALE, MIN_GROWTH
from finrl_pod.native.kernel_launch import block_size, launch
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod_envs.observation import EnvState, KernelEnv

TILE = 2048  # numbers of a block of accounts: what a program holds in registers
MIN_DIVISOR = 1e-9  # of equity, as in `MarketEnv.transition`
SMALLEST = torch.finfo(torch.float32).tiny


@triton.jit
def _at_most(x, limit: tl.constexpr):
    """Minimum of a tensor and a constant in the dtype of the tensor; Triton 3.7 rounds the constant to float32."""
    return tl.minimum(x, x * 0 + limit)


@triton.jit
def _at_least(x, limit: tl.constexpr):
    """Maximum of a tensor and a constant, as `_at_most`."""
    return tl.maximum(x, x * 0 + limit)


@triton.jit
def _capped_weights(x, limit: tl.constexpr, smallest: tl.constexpr):
    """`capped` of mandate.py: x [A, N] times at least 1, at most `limit`, with the sum kept as far as possible."""
    total = tl.sum(x, 1)
    factor = total * 0 + 1
    cut = total * 0
    grows = 1
    while grows > 0:  # cutting a weight raises the others, so the set at the limit grows until it is complete
        exceeds_limit = x * factor[:, None] > limit
        number = tl.sum(tl.where(exceeds_limit, x * 0 + 1, x * 0), 1)
        free_weight = tl.sum(tl.where(exceeds_limit, x * 0, x), 1)
        has_grown = number > cut
        grows = tl.max(tl.where(has_grown, 1, 0))
        scale = tl.maximum((total - limit * number) / tl.maximum(free_weight, smallest), 1.0)
        factor = tl.where(has_grown, scale, factor)
        cut = tl.where(has_grown, number, cut)
    return _at_most(x * factor[:, None], limit)


@triton.jit
def _store_account(
    destination, rows, n, account_width, account_mask, cash, values, virtual, budget,
    N: tl.constexpr, VIRTUAL: tl.constexpr, BUDGET: tl.constexpr,
):  # fmt: skip
    """One observed account a row: cash, N holdings, then the extras."""
    mask = account_mask[:, None] & (n < N)[None, :]
    kind = destination.dtype.element_ty
    tl.store(destination + rows * account_width, cash.to(kind), mask=account_mask)
    tl.store(destination + rows[:, None] * account_width + 1 + n[None, :], values.to(kind), mask=mask)
    offsets = 1 + N
    if VIRTUAL:
        tl.store(destination + rows[:, None] * account_width + offsets + n[None, :], virtual.to(kind), mask=mask)
        offsets += N
    if BUDGET:
        tl.store(destination + rows * account_width + offsets, budget.to(kind), mask=account_mask)


@triton.jit
def market_step(
    # tables of the market, [T, N] or [T]; None where a rule needs none
    close_table, fill_table, tradable_table, fillable_table, delisted_table, turbulent_table, rate_table,
    base_table, decides_table, starts,
    # state before and after; they may be the same tensors
    bar_in, left_in, episode_in, cash_in, shares_in, virtual_in, budget_in, action_in,
    bar_out, left_out, episode_out, cash_out, shares_out, virtual_out, budget_out,
    # results
    reached_bar_out, account_out, final_out, reward_out, terminated_out, truncated_out, equity_out, turnover_out,
    cost_out,
    groups, rounds, episode_bars, account_width,
    N: tl.constexpr, N_BLOCK: tl.constexpr, A: tl.constexpr, A_BLOCK: tl.constexpr,
    PORTFOLIO: tl.constexpr, MANDATE: tl.constexpr, WHOLE: tl.constexpr, CHANGE: tl.constexpr,
    TRADABLE: tl.constexpr, FILLABLE: tl.constexpr, TURBULENT: tl.constexpr, RATES: tl.constexpr,
    LIMIT: tl.constexpr, BUDGET: tl.constexpr, VIRTUAL: tl.constexpr,
    # Numbers of the settings, as constants because arguments are rounded to float32.
    start_cash: tl.constexpr, hmax: tl.constexpr, rate: tl.constexpr, ruin: tl.constexpr, leverage: tl.constexpr,
    tilt: tl.constexpr, trade_speed: tl.constexpr, max_weight: tl.constexpr, full_budget: tl.constexpr,
    budget_per_bar: tl.constexpr, change_scale: tl.constexpr, min_growth: tl.constexpr,
    smallest: tl.constexpr, min_divisor: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N_BLOCK)
    assets = n < N
    bar = tl.load(bar_in + group)
    left = tl.load(left_in + group) - 1
    episode = tl.load(episode_in + group)
    ends = left <= 0
    row = bar * N + n
    close = tl.load(close_table + row, mask=assets, other=1.0)
    close_next = tl.load(close_table + row + N, mask=assets, other=1.0)
    fill = tl.load(fill_table + row, mask=assets, other=1.0)
    fill_next = tl.load(fill_table + row + N, mask=assets, other=1.0)
    can_trade = assets
    if TRADABLE:
        can_trade = tl.load(tradable_table + row, mask=assets, other=0) != 0
    can_fill = assets
    delisted = n < 0
    if FILLABLE:
        can_fill = tl.load(fillable_table + row, mask=assets, other=0) != 0
        delisted = tl.load(delisted_table + row, mask=assets, other=0) != 0
    sells_all = False
    if TURBULENT:
        sells_all = tl.load(turbulent_table + bar) != 0
    if RATES:
        rates = tl.load(rate_table + row, mask=assets, other=0.0)
    if MANDATE:
        base = tl.load(base_table + row, mask=assets, other=0.0)
        base_sum = tl.sum(base, 0)
        decides = tl.load(decides_table + bar) != 0

    for start in range(0, A, A_BLOCK):
        a = start + tl.arange(0, A_BLOCK)
        account_mask = a < A
        rows = group * A + a
        mask = account_mask[:, None] & assets[None, :]
        offsets = rows[:, None] * N + n[None, :]
        cash = tl.load(cash_in + rows, mask=account_mask, other=1.0)
        shares = tl.load(shares_in + offsets, mask=mask, other=0.0)
        values = shares * close[None, :]
        equity_now = cash + tl.sum(values, 1)
        zero = shares * 0
        budget = cash * 0
        virtual = zero

        if MANDATE:
            held_weights = values / _at_least(equity_now, min_divisor)[:, None]
            scores = tl.load(action_in + offsets, mask=mask, other=0.0).to(shares.dtype)
            virtual = tl.load(virtual_in + offsets, mask=mask, other=0.0)
            mass = base[None, :] * tl.exp(tilt * (1 - 2 / (tl.exp(2 * scores) + 1)))
            blocked_holdings = tl.where(can_trade[None, :], zero, held_weights)
            blocked_weight = tl.sum(blocked_holdings, 1)
            investable = tl.maximum(leverage - blocked_weight, 0.0)
            desired_weights = mass * (base_sum * investable / tl.maximum(tl.sum(mass, 1), smallest))[:, None]
            entry = base[None, :] * investable[:, None]
            if LIMIT:
                desired_weights = _capped_weights(desired_weights, max_weight, smallest)
                entry = _capped_weights(entry, max_weight, smallest)
            # `trade_towards` of mandate.py
            is_new = tl.max(tl.where(held_weights != 0, 1, 0), 1) == 0
            previous_weights = tl.where(can_trade[None, :], virtual, zero)
            remaining = tl.sum(previous_weights, 1)
            available = tl.maximum(tl.sum(virtual, 1) - blocked_weight, 0.0)
            lost_holdings = (virtual != 0) & ((can_trade == 0) & assets)[None, :] & (held_weights == 0)
            has_freed_money = tl.max(tl.where(lost_holdings, 1, 0), 1) > 0
            has_holdings = remaining > 0
            spread = previous_weights * (available / tl.where(has_holdings, remaining, remaining * 0 + 1))[:, None]
            enters = is_new | (remaining <= 0)
            previous_weights = tl.where(enters[:, None], tl.where(can_trade[None, :], entry, zero), spread)
            change = tl.where((can_trade & decides)[None, :], trade_speed * (desired_weights - previous_weights), zero)
            if BUDGET:
                budget = tl.load(budget_in + rows, mask=account_mask, other=0.0)
                budget = tl.where(is_new, budget * 0 + full_budget, budget)
                spent_budget = tl.sum(tl.abs(change), 1) / 2
                factor = tl.minimum(budget / tl.maximum(spent_budget, smallest), 1.0)
                change = change * factor[:, None]
                budget = tl.maximum(budget - spent_budget * factor, 0.0)
                budget = _at_most(budget + budget_per_bar, full_budget)
            weights = previous_weights + change + blocked_holdings
            trades = weights * equity_now[:, None] / close[None, :] - shares
            acts = ((decides | has_freed_money) | is_new)[:, None] & (weights == weights)
            trades = tl.where(acts, trades, zero)
            drifted_weights = weights * (close_next / close)[None, :]
            growth = 1 + tl.sum(tl.where(mask, drifted_weights - weights, zero), 1)
            virtual = drifted_weights / _at_least(growth, min_divisor)[:, None]
        elif PORTFOLIO:
            first = action_in + rows * (N + 1)
            cash_score = tl.load(first, mask=account_mask, other=0.0).to(shares.dtype)
            scores = tl.load(first[:, None] + 1 + n[None, :], mask=mask, other=0.0).to(shares.dtype)
            scores = tl.where(can_trade[None, :], scores, zero - float("inf"))
            top = tl.maximum(tl.max(scores, 1), cash_score)
            mass = tl.exp(scores - top[:, None])
            total = tl.sum(mass, 1) + tl.exp(cash_score - top)
            trades = mass * (equity_now * leverage / total)[:, None] / close[None, :] - shares
        else:
            action = tl.load(action_in + offsets, mask=mask, other=0.0).to(shares.dtype)
            trades = tl.minimum(tl.maximum(action, -1.0), 1.0) * hmax

        if TURBULENT:
            trades = tl.where(sells_all, -shares, trades)
        if FILLABLE:
            trades = tl.where(can_fill[None, :], trades, tl.where(delisted[None, :], -shares, zero))
        trades = tl.where(mask, trades, zero)

        # `execute` of execution.py: sells first, then buys as far as the cash goes
        if WHOLE:
            trades = tl.where(trades < 0, -tl.floor(-trades), tl.floor(trades))
        sell = tl.minimum(tl.maximum(-trades, 0.0), shares)
        requested_shares = tl.maximum(trades, 0.0)
        sale_value = sell * fill[None, :]
        requested_value = requested_shares * fill[None, :]
        if RATES:
            funds = cash + tl.sum(sale_value * (1 - rates)[None, :], 1)
            need = tl.sum(requested_value * (1 + rates)[None, :], 1)
        else:
            funds = cash + tl.sum(sale_value, 1) * (1 - rate)
            need = tl.sum(requested_value, 1) * (1 + rate)
        usable = tl.maximum(funds, 0.0)
        buy = requested_shares * (usable / tl.maximum(tl.maximum(need, usable), smallest))[:, None]
        if WHOLE:
            buy = tl.floor(buy)
        purchase_value = buy * fill[None, :]
        traded_value = tl.sum(sale_value, 1) + tl.sum(purchase_value, 1)
        if RATES:
            payment = tl.sum(purchase_value * (1 + rates)[None, :], 1)
            cost = tl.sum((sale_value + purchase_value) * rates[None, :], 1)
        else:
            payment = tl.sum(purchase_value, 1) * (1 + rate)
            cost = traded_value * rate
        cash_left = tl.maximum(funds - payment, tl.minimum(funds, 0.0))
        worth_before = cash + tl.sum(tl.where(mask, shares * fill[None, :], zero), 1)
        shares = shares - sell + buy
        values = tl.where(mask, shares * close_next[None, :], zero)
        worth_after = cash_left + tl.sum(tl.where(mask, shares * fill_next[None, :], zero), 1)
        equity = cash_left + tl.sum(values, 1)
        is_ruined = equity <= ruin * start_cash
        if CHANGE:
            reward = (worth_after - worth_before) * change_scale
        else:
            solvent = worth_before > 0
            ratio = tl.where(solvent, worth_after, cash * 0) / tl.where(solvent, worth_before, cash * 0 + 1)
            reward = tl.log(_at_least(ratio, min_growth))
        turnover = traded_value / _at_least(worth_before, min_divisor)

        kind = reward_out.dtype.element_ty
        tl.store(reward_out + rows, reward.to(kind), mask=account_mask)
        tl.store(equity_out + rows, equity.to(kind), mask=account_mask)
        tl.store(turnover_out + rows, turnover.to(kind), mask=account_mask)
        tl.store(cost_out + rows, cost.to(kind), mask=account_mask)
        tl.store(terminated_out + rows, is_ruined.to(tl.int8), mask=account_mask)
        tl.store(truncated_out + rows, (ends & (is_ruined == 0)).to(tl.int8), mask=account_mask)

        unit = cash * 0 + start_cash
        if PORTFOLIO:
            unit = _at_least(equity, min_divisor)
        seen_budget = budget / full_budget
        _store_account(
            final_out, rows, n, account_width, account_mask, cash_left / unit, values / unit[:, None], virtual,
            seen_budget, N, VIRTUAL, BUDGET,
        )  # fmt: skip

        # reset
        needs_reset = is_ruined | ends
        cash_left = tl.where(needs_reset, cash * 0 + start_cash, cash_left)
        shares = tl.where(needs_reset[:, None], zero, shares)
        values = tl.where(needs_reset[:, None], zero, values)
        virtual = tl.where(needs_reset[:, None], zero, virtual)
        budget = tl.where(needs_reset, cash * 0 + full_budget, budget)
        if PORTFOLIO:
            unit = tl.where(needs_reset, cash * 0 + start_cash, unit)
        seen_budget = budget / full_budget
        _store_account(
            account_out, rows, n, account_width, account_mask, cash_left / unit, values / unit[:, None], virtual,
            seen_budget, N, VIRTUAL, BUDGET,
        )  # fmt: skip
        tl.store(cash_out + rows, cash_left, mask=account_mask)
        tl.store(shares_out + offsets, shares, mask=mask)
        if MANDATE:
            tl.store(virtual_out + offsets, virtual, mask=mask)
        if BUDGET:
            tl.store(budget_out + rows, budget, mask=account_mask)

    member = group // groups
    next_start = tl.load(starts + (member * rounds + episode % rounds) * groups + group % groups)
    tl.debug_barrier()  # the state may be written in place: every thread has read the bar
    tl.store(reached_bar_out + group, bar + 1)
    tl.store(bar_out + group, tl.where(ends, next_start, bar + 1))
    tl.store(left_out + group, tl.where(ends, left * 0 + episode_bars, left))
    tl.store(episode_out + group, episode + tl.where(ends, 1, 0))


class TritonStep:
    """`MarketEnv.transition` for P members, G groups and E accounts in one launch; holds the tables of the market."""

    def __init__(self, env: KernelEnv, rounds: int) -> None:
        """rounds: start windows of each group."""
        self._env: KernelEnv = weakref.proxy(env)  # in a cycle, its tables would outlive it
        self._rounds = rounds
        config = env.config
        mandate = env.mandate
        used_bars = slice(env.first, env.last + 1)
        market = env.market
        table = env.mandate_table
        all_tradable = bool(market.tradable[used_bars].all())
        all_fillable = bool(market.fillable[used_bars].all())
        rates = env.venue.cost_rates
        self._tables = [
            env.close.contiguous(),
            env.fill.contiguous(),
            None if all_tradable else market.tradable.to(torch.uint8),
            None if all_fillable else market.fillable.to(torch.uint8),
            None if all_fillable else market.delisted.to(torch.uint8),
            None if env.turbulent is None else env.turbulent.to(torch.uint8),
            None if rates is None else rates.contiguous(),
            None if table is None else table.base.contiguous(),
            None if table is None else table.decides.to(torch.uint8),
        ]
        limits_turnover = mandate is not None and mandate.max_turnover > 0
        full = 1.0 if mandate is None or not limits_turnover else initial_budget(mandate)
        per_bar = mandate.max_turnover / table.bars_per_year if mandate is not None and table is not None else 0.0
        tilt, trade_speed, max_weight = (
            (0.0, 1.0, 1.0) if mandate is None else (mandate.tilt, mandate.trade_speed, mandate.max_weight)
        )
        self._account_width = 1 + env.assets + env.extras.size(env.assets)
        n_block = block_size(env.assets)
        self._constants: dict[str, float] = {
            "N": env.assets,
            "N_BLOCK": n_block,
            "A": env.accounts,
            "A_BLOCK": min(block_size(env.accounts), max(TILE // n_block, 1)),
            "PORTFOLIO": config.kind == "portfolio",
            "MANDATE": mandate is not None,
            "WHOLE": config.whole_shares,
            "CHANGE": env.reward.kernel == "gain",
            "TRADABLE": not all_tradable,
            "FILLABLE": not all_fillable,
            "TURBULENT": env.turbulent is not None,
            "RATES": rates is not None,
            "LIMIT": mandate is not None and mandate.max_weight < 1,
            "BUDGET": limits_turnover,
            "VIRTUAL": observes_virtual(config, mandate),
            "start_cash": float(config.cash),
            "hmax": float(config.hmax),
            "rate": float(env.venue.cost_rate),
            "leverage": float(config.leverage),
            "tilt": float(tilt),
            "trade_speed": float(trade_speed),
            "max_weight": float(max_weight),
            "full_budget": float(full),
            "budget_per_bar": float(per_bar),
            "change_scale": CHANGE_SCALE,
            "min_growth": MIN_GROWTH,
            "smallest": SMALLEST,
            "min_divisor": MIN_DIVISOR,
        }
        self._static: _Outputs | None = None

    def __call__(
        self,
        state: EnvState,
        action: Tensor,
        starts: Tensor,
        ruin: float,
        out: Tensor | None = None,  # noqa: ARG002  `can_write` is False
        *,
        reuse: bool = False,
    ) -> tuple[EnvState, EnvStep]:
        """The next state and the results of one step.

        action: [P, E, action_size]; starts: [P, rounds, G] int64; ruin: share of the starting cash below which an
        account is terminated. reuse: write to the same tensors in every call, over the state of the last.
        """
        env = self._env
        if reuse and self._static is None:
            self._static = _Outputs(env, self._account_width)
        outputs = self._static if reuse and self._static is not None else _Outputs(env, self._account_width)
        inputs = (*state[:5], state.virtual, state.budget, action)
        next_state = outputs.state
        result = outputs.result
        launch(
            market_step,
            (env.members * env.groups,),
            *self._tables,
            starts,
            *(None if x is None else x.contiguous() for x in inputs),
            *(*next_state[:5], next_state.virtual, next_state.budget),
            result.final_observation.bar,
            result.observation.account,
            result.final_observation.account,
            result.reward,
            result.terminated.view(torch.int8),
            result.truncated.view(torch.int8),
            result.equity,
            result.turnover,
            result.cost,
            *(env.groups, self._rounds, env.episode_bars, self._account_width),
            ruin=ruin,
            **self._constants,
        )
        return next_state, result

    def can_write(self, out: Tensor) -> bool:  # noqa: ARG002
        """Flat observations are written by torch."""
        return False


class _Outputs:
    """Tensors that a step writes: the next state and the results."""

    def __init__(self, env: KernelEnv, account_width: int) -> None:
        p = env.members
        g = env.groups
        a = env.accounts
        e = env.envs
        state_like, output_like = (torch.empty(0, dtype=x, device=env.device) for x in (env.dtype, env.output_dtype))
        reached_bar, bar, steps_left, episode_index = state_like.new_empty(4, p, g, dtype=torch.int64).unbind()
        shares = state_like.new_empty(p, g, a, env.assets)
        mandate = env.mandate
        virtual = None if mandate is None else torch.empty_like(shares)
        budget = state_like.new_empty(p, g, a) if mandate is not None and mandate.max_turnover > 0 else None
        cash = state_like.new_empty(p, g, a)
        self.state = EnvState(bar, steps_left, episode_index, cash, shares, None, None, virtual, budget)
        account, final = output_like.new_empty(2, p, e, account_width).unbind()
        reward, equity, turnover, cost = output_like.new_empty(4, p, e).unbind()
        terminated, truncated = torch.empty(2, p, e, dtype=torch.bool, device=env.device).unbind()
        self.result = EnvStep(
            observation=Observation(bar, account),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_observation=Observation(reached_bar, final),
            equity=equity,
            turnover=turnover,
            cost=cost,
        )

"""Execution venue: fills, overnight interest, fees and dividends of one market under a rule set.

Rules without frictions fill through `execute`, others through `execute_with_frictions`, the general case with
non-proportional costs and volume limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.costs import (
    ERA_COSTS_BPS,
    BarLiquidity,
    CostModel,
    EraHalfSpread,
    Frictions,
    HalfSpread,
    PerShare,
    QuotedHalfSpread,
)
from finrl_pod.market.execution import ExecutionRules, Fills, account_equity, cash_floor, execute, split_purchases
from finrl_pod.native.device import on_device
from finrl_pod.tables import has_nan, in_dtype, once, rows_table
from finrl_pod.types import Floats, MarketTensor, Tensor, Times

DAYS_PER_YEAR = 365
SECONDS_PER_DAY = 86_400
MIN_DELISTING_FACTOR = 1e-6  # of the last close: prices must stay above zero
NEWTON_STEPS = 6  # converges to rounding error from a start within a few percent
MIN_BUY_FRACTION = 1e-9  # of the requested buys: "as little as possible", where a minimum fee makes a step
DUST = 1e-6  # of equity: with a minimum fee, smaller trades (rounding of targets) are dropped
Total = Callable[[Tensor], Tensor]


class Venue:
    """Fills, liquidity and overnight carry of a market under a rule set, in one dtype, on the device of the market.

    fill: [T, N], `market.fill` with delisted tickers at their delisting price. delay: bars from decision to fill.
    risk_free: [T], return of cash from bar t to t+1, 0 for the last; None without cash rates. Accounts earn it if the
        rules have cash rates. Cash rates of the market are for ratios alone.
    cost_rate: proportional cost of all assets. cost_rates: [T, N], rate of each asset for decisions of bar t if it
        depends on quoted spreads, else None.
    In the methods, `t` is a bar or a tensor of bars with the leading shape of the accounts: with bars [P, G] and
    accounts [P, G, A], prices are [P, G, 1, N].
    """

    def __init__(self, market: MarketTensor, rules: ExecutionRules, dtype: torch.dtype) -> None:
        """Raises InputError if the rules need volumes or spreads that the market lacks, or delay fills at the
        same close.
        """
        frictions = rules.frictions
        self.rules = rules
        self.same_close = market.fill_rule == "same_close"
        self.delay = 1 if frictions is None else frictions.delay
        self.fill = in_dtype(market.fill, dtype)
        self.risk_free: Tensor | None = None
        self._interest: Tensor | None = None
        self._fees: Tensor | None = None
        self._volume: Tensor | None = None
        self._volatility: Tensor | None = None
        self._half_spread: Tensor | None = None
        self._dividends = None if market.dividends is None else in_dtype(market.dividends, dtype)
        self._plain_rules = replace(rules, frictions=None)
        self._general = False
        self.cost_rate = rules.cost_rate
        self.cost_rates: Tensor | None = None
        self._set_overnight_rates(market, frictions or Frictions(), dtype)
        if frictions is not None:
            self._set_frictions(market, frictions, dtype)

    def _set_frictions(self, market: MarketTensor, frictions: Frictions, dtype: torch.dtype) -> None:
        if self.same_close and frictions.delay > 1:
            raise InputError(
                f'fills at the same close cannot be delayed, got a delay of {frictions.delay} bars; use fill = "next"'
            )
        if frictions.needs_volume:
            if market.fill_volume is None or market.volatility is None:
                raise InputError(
                    "market impact and volume limits need prices with volumes, this data has none: "
                    "import volumes, or set impact and participation to 0"
                )
            self._volume = in_dtype(market.fill_volume, dtype)
            self._volatility = in_dtype(market.volatility, dtype)
        if frictions.needs_spread:
            is_by_era = any(isinstance(model, EraHalfSpread) for model in frictions.costs)
            self._half_spread = era_half_spreads(market) if is_by_era else known_half_spreads(market)
        if frictions.delisting_return:
            fill = self.fill
            factor = max(1 + frictions.delisting_return, MIN_DELISTING_FACTOR)

            def paid_out(rows: slice) -> Tensor:
                exits = market.delisted[rows] & ~market.fillable[rows]
                return torch.where(exits, fill[rows] * factor, fill[rows])

            self.fill = rows_table(paid_out, fill)
        spreads = [model for model in frictions.costs if isinstance(model, HalfSpread)]
        proportional = all(isinstance(model, (HalfSpread, QuotedHalfSpread)) for model in frictions.costs)
        self._general = not proportional or frictions.participation > 0
        if not self._general:  # proportional costs add up to one rate
            self.cost_rate += sum(model.share for model in spreads)
            self._plain_rules = replace(self.rules, cost_rate=self.cost_rate, frictions=None)
            if (half_spread := self._half_spread) is not None:
                rate = self.cost_rate
                self.cost_rates = once(
                    half_spread,
                    ("cost rates", rate, dtype),
                    lambda: rows_table(lambda rows: half_spread[rows] + rate, half_spread, dtype),
                )

    def fill_trades(
        self,
        t: int | Tensor,
        cash: Tensor,
        shares: Tensor,
        trades: Tensor,
        prices: Tensor,
        priority: Tensor | None = None,
    ) -> Fills:
        """Fill the trades decided at bar t at `prices`: see `execute` and `execute_with_frictions`."""
        frictions = self.rules.frictions
        if not self._general or frictions is None:
            rates = None if self.cost_rates is None else _rows(self.cost_rates, t)
            return execute(cash, shares, trades, prices, self._plain_rules, priority, rates)
        return execute_with_frictions(cash, shares, trades, prices, self.rules, frictions, self.liquidity(t))

    def limit_to_volume(self, t: int | Tensor, trades: Tensor) -> Tensor:
        """Limit trades decided at bar t by the volume of the bar in which they fill."""
        frictions = self.rules.frictions
        return trades if frictions is None else limit_to_volume(trades, frictions, self.liquidity(t))

    def overnight(self, t: int | Tensor, cash: Tensor, shares: Tensor, close: Tensor) -> Tensor:
        """Cash [...] at the next bar before its fills: plus interest and dividends, less the borrow fee on shorts.

        The fee is charged at these closes; shorts pay the dividends.
        """
        if self._interest is not None:
            cash = cash * (1 + _bar_value(self._interest, t))
        if self._fees is not None:
            cash = cash - _bar_value(self._fees, t) * (shares.clamp(max=0) * -close).sum(-1)
        return cash if self._dividends is None else cash + self.dividends(t, shares)

    def dividends(self, t: int | Tensor, shares: Tensor) -> Tensor:
        """Dividends [...] in currency that `overnight` adds for holdings [..., N] from bar t to the next."""
        if self._dividends is None:
            return torch.zeros_like(shares[..., 0])
        return (shares * _rows(self._dividends, t)).sum(-1)

    @property
    def is_proportional(self) -> bool:
        """Whether a fill depends on nothing but `fill` and proportional costs, and cash stays the same overnight."""
        return not (self._general or self.has_carry or self.delay > 1)

    @property
    def has_cost_models(self) -> bool:
        """Whether there are cost models besides the proportional one."""
        return self.rules.frictions is not None and bool(self.rules.frictions.costs)

    @property
    def has_carry(self) -> bool:
        """Whether cash changes overnight."""
        return self._interest is not None or self._fees is not None or self._dividends is not None

    @property
    def has_dividends(self) -> bool:
        """Whether the market pays dividends in cash."""
        return self._dividends is not None

    def liquidity(self, t: int | Tensor) -> BarLiquidity:
        """Liquidity of the bar in which the decision of t fills."""
        tables = (self._volume, self._volatility, self._half_spread)
        return BarLiquidity(*(None if table is None else _rows(table, t).to(self.fill.dtype) for table in tables))

    def attribution(self, t: int | Tensor, change: Tensor, prices: Tensor) -> dict[str, Tensor]:
        """Costs [...] by model name of fills that changed the holdings by `change` [..., N], decided at bar t."""
        costs = () if self.rules.frictions is None else self.rules.frictions.costs
        return costs_by_model(change, prices, all_cost_models(self.rules.cost_rate, costs), self.liquidity(t))

    def asset_costs(self, t: int | Tensor, change: Tensor, prices: Tensor) -> Tensor:
        """Costs [..., N] in currency of fills that changed the holdings by `change` [..., N], decided at bar t."""
        costs = () if self.rules.frictions is None else self.rules.frictions.costs
        return costs_by_asset(change, prices, all_cost_models(self.rules.cost_rate, costs), self.liquidity(t))

    def _set_overnight_rates(self, market: MarketTensor, frictions: Frictions, dtype: torch.dtype) -> None:
        device = market.close.device
        returns = cash_returns(market.times, frictions.cash_rates or market.cash_rates)
        if returns is not None:
            self.risk_free = torch.from_numpy(returns).to(device, dtype)
            self._interest = self.risk_free if frictions.cash_rates else None
        if frictions.borrow_fee:
            self._fees = torch.from_numpy(frictions.borrow_fee * years_between_bars(market.times)).to(device, dtype)


def years_between_bars(times: Times) -> Floats:
    """[T] years of 365 days from each bar to the next, 0 for the last."""
    seconds = np.diff(times.astype("datetime64[s]").astype(np.int64)).astype(np.float64)
    return np.append(seconds / (SECONDS_PER_DAY * DAYS_PER_YEAR), 0.0)


def rates_at(times: Times, dated_rates: tuple[tuple[str, float], ...]) -> Floats:
    """[T] annual rate at each bar: rate of the last date at or before it, NaN before the first."""
    starts = np.array([date for date, _ in dated_rates], dtype="datetime64[ns]")
    rate_indices = np.searchsorted(starts, times.astype("datetime64[ns]"), side="right")
    return np.array([np.nan, *(rate for _, rate in dated_rates)])[rate_indices]


def cash_returns(times: Times, dated_rates: tuple[tuple[str, float], ...]) -> Floats | None:
    """[T] return of cash from each bar to the next, 0 where its rate is unknown; None if no rate differs from 0."""
    if not any(rate for _, rate in dated_rates):
        return None
    return np.nan_to_num(rates_at(times, dated_rates)) * years_between_bars(times)


def era_half_spreads(market: MarketTensor) -> Tensor:
    """[T, N] float64, the costs of the era of each bar as a fraction of the price."""
    ends = np.array([day for day, _ in ERA_COSTS_BPS], dtype="datetime64[ns]")
    rates = np.array([*(bps / 1e4 for _, bps in ERA_COSTS_BPS), 0.0])[np.searchsorted(ends, market.times, side="right")]
    return torch.from_numpy(rates).to(market.close.device)[:, None].expand(market.close.shape).contiguous()


def known_half_spreads(market: MarketTensor) -> Tensor:
    """The half spreads of the market. Raises InputError without them, and for a symbol that lacks one at a fill."""
    spreads = market.half_spread
    if spreads is None:
        raise InputError(
            'half_spread = "from data" needs prices with spreads, this data has none: import a column "spread", or set '
            "half_spread_bps"
        )
    if has_nan(spreads):
        unknown = torch.isnan(spreads)
        t, n = unknown.nonzero()[0].tolist()
        count = int(unknown[:, n].sum())
        raise InputError(
            f'half_spread = "from data" needs a spread at every fill, but {market.symbols[n]} has none for {count} of '
            f"its fills, first for the decision of {str(market.times[t])[:10]}; complete its spreads or leave it out"
        )
    return spreads


def _rows(table: Tensor, t: int | Tensor) -> Tensor:
    """table[t] [..., N], with a dimension of 1 for the accounts that share a bar."""
    return table[t] if isinstance(t, int) else table[t].unsqueeze(-2)


def _bar_value(table: Tensor, t: int | Tensor) -> Tensor:
    """table[t], with a last dimension of 1 for the accounts that share a bar."""
    return table[t] if isinstance(t, int) else table[t].unsqueeze(-1)


def execute_with_frictions(
    cash: Tensor,
    shares: Tensor,
    trades: Tensor,
    prices: Tensor,
    rules: ExecutionRules,
    frictions: Frictions,
    liquidity: BarLiquidity,
) -> Fills:
    """Fill trades under all models of `frictions`; shapes and guarantees as in `execute`.

    Trades are first limited to the bar volume. Sells come before buys, and no sale costs more than its proceeds.
    Purchases that cover shorts always fill. Buys beyond the cash, costs included, are scaled by one factor; if the
    cash is below the minimum fees of all buys, none fills.
    """
    charge = all_cost_models(rules.cost_rate, frictions.costs)
    trades = limit_to_volume(trades, frictions, liquidity)
    if any(isinstance(model, PerShare) and model.minimum > 0 for model in frictions.costs):
        minimum_value = DUST * account_equity(cash, shares, prices).abs().unsqueeze(-1)
        dust = (trades.abs() * prices < minimum_value) & (trades != -shares)  # closing a position is not rounding
        trades = torch.where(dust, torch.zeros_like(trades), trades)
    if rules.whole_shares:
        trades = torch.trunc(trades)
    sell = (-trades).clamp(min=0)
    if not rules.short:
        sell = torch.minimum(sell, shares)
    sale_value = sell * prices
    sale_costs = torch.minimum(_total_cost(charge, sell, prices, liquidity), sale_value)
    remaining_shares = shares - sell
    funds = cash + (sale_value - sale_costs).sum(-1)
    floor = cash_floor(funds, remaining_shares, prices, rules)
    cover, purchases = split_purchases(trades, remaining_shares, rules)
    scale = _affordable(funds - floor, cover, purchases, prices, charge, liquidity)
    buy = purchases * scale.unsqueeze(-1)
    if rules.whole_shares:
        buy = torch.floor(buy)
    cash_after_cover = funds
    if cover is not None:
        buy = buy + cover
        cash_after_cover = funds - (cover * prices + _total_cost(charge, cover, prices, liquidity)).sum(-1)
    purchase_value = buy * prices
    buy_costs = _total_cost(charge, buy, prices, liquidity)
    left = funds - (purchase_value + buy_costs).sum(-1)
    # Rounding can leave scaled-down purchases a few ulps below the floor.
    left = torch.maximum(left, torch.minimum(floor, cash_after_cover))
    return Fills(left, remaining_shares + buy, (sale_costs + buy_costs).sum(-1), (sale_value + purchase_value).sum(-1))


def limit_to_volume(trades: Tensor, frictions: Frictions, liquidity: BarLiquidity) -> Tensor:
    """Limit trades [..., N] to the participation rate times the bar volume."""
    if frictions.participation == 0 or liquidity.volume is None:
        return trades
    limit = frictions.participation * liquidity.volume
    return torch.minimum(torch.maximum(trades, -limit), limit)


def all_cost_models(cost_rate: float, costs: Sequence[CostModel]) -> tuple[CostModel, ...]:
    """All cost models: the proportional rate, named "commission", then `costs`."""
    return (HalfSpread(cost_rate, name="commission"), *costs)


def costs_by_model(
    change: Tensor, prices: Tensor, models: Sequence[CostModel], liquidity: BarLiquidity
) -> dict[str, Tensor]:
    """Attribute the costs of fills of `change` shares [..., N]: currency [...] by model name.

    If the costs of a sale were capped at its proceeds, all models are reduced in proportion.
    """
    amount = change.abs()
    model_costs = [model.cost(amount, prices, liquidity) for model in models]
    total = torch.stack(model_costs).sum(0)
    charged_cost = torch.where(change < 0, torch.minimum(total, amount * prices), total)
    cut = torch.where(total > 0, charged_cost / total.clamp(min=torch.finfo(total.dtype).tiny), torch.ones_like(total))
    costs_by_name: dict[str, Tensor] = {}
    for model, model_cost in zip(models, model_costs, strict=True):
        costs_by_name[model.name] = costs_by_name.get(model.name, 0.0) + (model_cost * cut).sum(-1)
    return costs_by_name


def costs_by_asset(change: Tensor, prices: Tensor, models: Sequence[CostModel], liquidity: BarLiquidity) -> Tensor:
    """Costs of fills of `change` shares [..., N] in currency [..., N]; a sale costs at most its proceeds."""
    amount = change.abs()
    total = _total_cost(models, amount, prices, liquidity)
    return torch.where(change < 0, torch.minimum(total, amount * prices), total)


def _total_cost(models: Sequence[CostModel], amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
    total = models[0].cost(amount, prices, liquidity)
    for model in models[1:]:
        total = total + model.cost(amount, prices, liquidity)
    return total


def _affordable(
    funds: Tensor,
    cover: Tensor | None,
    purchases: Tensor,
    prices: Tensor,
    models: Sequence[CostModel],
    liquidity: BarLiquidity,
) -> Tensor:
    """Largest factor [...] in [0, 1] such that it times `purchases`, plus `cover` and costs, is at most `funds`.

    The bill is convex and increasing in the factor. Newton steps from 1 stay to the right of the root; the chord from
    there to the smallest purchase lies above the bill, so the factor on the chord is affordable. The gradient is that
    of the equation "bill = funds" (implicit function theorem).
    """
    funds = funds.clamp(min=0)

    def amounts(factor: Tensor) -> Tensor:
        model_cost = purchases * factor.unsqueeze(-1)
        return model_cost if cover is None else model_cost + cover

    def bill(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        return (amount * prices + _total_cost(models, amount, prices, liquidity)).sum(-1)

    def steepness(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        slopes = prices.expand_as(purchases)
        for model in models:
            slopes = slopes + model.slope(amount, prices, liquidity)
        return (slopes * purchases).sum(-1)

    full_factor = torch.ones_like(funds)
    with torch.no_grad():
        smallest = full_factor * MIN_BUY_FRACTION
        full_bill = bill(full_factor)
        minimum_value = bill(smallest)
        enough = full_bill <= funds
        if not on_device(funds.device) and bool(enough.all()):  # a GPU would have to be waited for
            return full_factor
        tiny = torch.finfo(purchases.dtype).tiny
        factor = full_factor
        price = full_bill
        for _ in range(NEWTON_STEPS):
            step = (price - funds).clamp(min=0) / steepness(factor).clamp(min=tiny)
            factor = torch.maximum(factor - step, smallest)
            price = bill(factor)
        chord = smallest + (factor - smallest) * (
            (funds - minimum_value) / (price - minimum_value).clamp(min=tiny)
        ).clamp(0, 1)
        scale = torch.where(funds > minimum_value, torch.minimum(chord, factor), torch.zeros_like(full_factor))
        scale = torch.where(enough, full_factor, scale)
        moves = ~enough & (funds > minimum_value)
        steep = steepness(factor).clamp(min=tiny)
    if not torch.is_grad_enabled():
        return scale
    slack = (funds - bill(factor)) / steep
    return scale + torch.where(moves, slack - slack.detach(), torch.zeros_like(full_factor))

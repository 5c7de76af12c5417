"""Pre-trade risk: limits checked before every order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from finrl_pod.paper.domain.records import OrderRequest, OrderType, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import RiskState, read_risk_state, tighten_risk_state
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import OrderSettings, RiskSettings

ZERO = Decimal(0)
_TOLERANCE = Decimal("1.000001")  # limits are fractions of moving equity: rounding above a limit is no violation


@dataclass(frozen=True)
class Exposure:
    """Own holdings and live orders, as input of the limit checks.

    equity: own, in currency. positions: own shares. live: signed unfilled shares of live orders. prices: price of
    each symbol in both. turnover: value traded and sent this session. account: shares in the broker account; None if
    not queried. limits: limits of the strategy; None for the limits of the manager.
    """

    equity: Decimal
    positions: Mapping[str, Decimal]
    live: Mapping[str, Decimal]
    prices: Mapping[str, Decimal]
    turnover: Decimal
    account: Mapping[str, Decimal] | None = None
    limits: RiskSettings | None = None


class RiskManager:
    """Checks orders against the limits and the risk state. It is read from disk each time (a halt may be new)."""

    def __init__(self, store: Store, limits: RiskSettings, orders: OrderSettings) -> None:
        """limits: loss limits, and order limits where an exposure has none."""
        self._store = store
        self.limits = limits
        self._collar = Decimal(str(orders.collar))

    @property
    def state(self) -> RiskState:
        """Current risk state; ACTIVE in a new journal."""
        return read_risk_state(self._store)

    @property
    def reason(self) -> str:
        """Reason for the current state."""
        row = self._store.last(schema.risk_states)
        return "" if row is None else str(row.reason)

    def set(self, state: RiskState, reason: str, now: datetime) -> None:
        """Write a new state."""
        self._store.add(schema.risk_states, now, state=state.value, reason=reason)

    def tighten(self, state: RiskState, reason: str, now: datetime) -> bool:
        """Write a stricter state. Returns False if the current one is at least as strict."""
        return tighten_risk_state(self._store, state, reason, now)

    def refusal(self, request: OrderRequest, reference: Decimal, exposure: Exposure) -> str | None:
        """Return why the order must not be sent, with the figures, or None. reference: the decision price."""
        state = self.state
        if state is RiskState.HALTED:
            return f"trading is halted ({self.reason})"
        position = exposure.positions.get(request.symbol, ZERO) + exposure.live.get(request.symbol, ZERO)
        change = request.side.sign * request.quantity
        if request.side is Side.SELL and exposure.account is not None:
            in_account = exposure.account.get(request.symbol, ZERO)
            if request.quantity > in_account:
                return f"the order sells {request.quantity} shares, but the account holds {in_account}"
        if is_reducing(position, change):
            return self._collar_violation(request, reference)
        if state is RiskState.REDUCING:
            return f"only reducing orders may be sent ({self.reason})"
        if request.side is Side.SELL:
            return f"the order sells {request.quantity} shares, but {max(position, ZERO)} own shares are held"
        if exposure.equity <= 0:
            return f"own equity is {exposure.equity:.2f}: no position may be increased"
        return self._collar_violation(request, reference) or self._limit_violation(request, change, exposure)

    def loss_breach(self, equity: Decimal, day_start: Decimal, peak: Decimal) -> str | None:
        """Return which loss limit is exceeded (daily loss or drawdown), with the figures, or None."""
        limits = (("daily loss", day_start, self.limits.daily_loss), ("drawdown", peak, self.limits.drawdown))
        for name, start, limit in limits:
            if start > 0 and (loss := 1 - equity / start) > Decimal(str(limit)):
                return f"the {name} of {loss:.2%} is above the limit of {limit:.2%}"
        return None

    def _collar_violation(self, request: OrderRequest, reference: Decimal) -> str | None:
        if not self._collar or request.type is not OrderType.LIMIT or request.limit_price is None:
            return None
        away = abs(request.limit_price / reference - 1)
        if away > self._collar * _TOLERANCE + Decimal("0.01") / reference:  # limit prices are rounded to the tick
            return f"the limit price is {away:.2%} from the decision's price, the collar is {self._collar:.2%}"
        return None

    def _limit_violation(self, request: OrderRequest, change: Decimal, exposure: Exposure) -> str | None:
        positions = {
            symbol: exposure.positions.get(symbol, ZERO) + exposure.live.get(symbol, ZERO)
            for symbol in {*exposure.positions, *exposure.live, request.symbol}
        }
        positions[request.symbol] += change
        unknown = [symbol for symbol, shares in positions.items() if shares and symbol not in exposure.prices]
        if unknown:
            return f"the price of {unknown[0]} is unknown, but its shares are held"
        values = {symbol: shares * exposure.prices[symbol] for symbol, shares in positions.items() if shares}
        size = abs(change) * exposure.prices[request.symbol]
        limits = exposure.limits or self.limits
        figures = (
            ("order", size, limits.max_order),
            ("position", abs(values.get(request.symbol, ZERO)), limits.max_position),
            ("gross exposure", sum(map(abs, values.values()), ZERO), limits.max_gross),
            ("net exposure", abs(sum(values.values(), ZERO)), limits.max_net),
            ("daily turnover", exposure.turnover + size, limits.max_turnover),
        )
        for name, value, limit in figures:
            if value > Decimal(str(limit)) * exposure.equity * _TOLERANCE:
                share = value / exposure.equity
                return f"the {name} would be {share:.1%} of equity, the limit is {limit:.1%}"
        return None


def is_reducing(position: Decimal, change: Decimal) -> bool:
    """Return True if the change makes the position smaller without reversing it. Both in signed shares."""
    return position * change < 0 and abs(change) <= abs(position)

"""The last look at every order before it leaves: limits, and the state that decides what may be sent at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from sqlalchemy import Connection

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add
from finrl_pod.paper.records import OrderRequest, OrderType, Side
from finrl_pod.paper.settings import OrderSettings, RiskSettings

ZERO = Decimal(0)
_HAIR = Decimal("1.000001")  # limits are shares of an equity that moves: a hair above is not a breach


class RiskState(StrEnum):
    """ACTIVE: all orders within limits. REDUCING: only those that make a position smaller. HALTED: none."""

    ACTIVE = "active"
    REDUCING = "reducing"
    HALTED = "halted"


@dataclass(frozen=True)
class Exposure:
    """What is held and on its way. equity: own, in currency. positions: shares; live: signed shares of live orders
    that have not filled; prices: by symbol, for every symbol of both; traded: value traded and sent this session.
    account: shares that the broker says the account holds, None where it was not asked.
    """

    equity: Decimal
    positions: Mapping[str, Decimal]
    live: Mapping[str, Decimal]
    prices: Mapping[str, Decimal]
    traded: Decimal
    account: Mapping[str, Decimal] | None = None


class Risk:
    """The state on disk, and the limits. The state is read anew at each check: another thread may have changed it."""

    def __init__(self, store: Store, limits: RiskSettings, orders: OrderSettings) -> None:
        self._store = store
        self._limits = limits
        self._collar = Decimal(str(orders.collar))

    @property
    def state(self) -> RiskState:
        """What was written last; ACTIVE in a new journal."""
        return state_in(self._store)

    @property
    def reason(self) -> str:
        """Why the state is what it is."""
        row = self._store.last(schema.risk_states)
        return "" if row is None else str(row.reason)

    def set(self, state: RiskState, reason: str, at: datetime) -> None:
        """Write a new state."""
        with self._store.write() as connection:
            self.set_in(connection, state, reason, at)

    def set_in(self, connection: Connection, state: RiskState, reason: str, at: datetime) -> None:
        """The same inside a transaction."""
        add(connection, schema.risk_states, at, state=state.value, reason=reason)

    def tighten(self, state: RiskState, reason: str, at: datetime) -> bool:
        """Write a stricter state; False where the present one is as strict already."""
        return tighten(self._store, state, reason, at)

    def refusal(self, request: OrderRequest, reference: Decimal, exposure: Exposure) -> str | None:
        """Why the order must not be sent, in words with the figures, or None. reference: the decision's price."""
        state = self.state
        if state is RiskState.HALTED:
            return f"trading is halted ({self.reason})"
        held = exposure.positions.get(request.symbol, ZERO) + exposure.live.get(request.symbol, ZERO)
        change = request.side.sign * request.quantity
        if request.side is Side.SELL and exposure.account is not None:
            there = exposure.account.get(request.symbol, ZERO)
            if request.quantity > there:
                return f"the account holds {there} shares of the {request.quantity} that would be sold"
        if reduces(held, change):
            return self._off_price(request, reference)
        if state is RiskState.REDUCING:
            return f"only reducing orders may be sent ({self.reason})"
        if request.side is Side.SELL:
            return f"{max(held, ZERO)} own shares are held of the {request.quantity} that would be sold"
        if exposure.equity <= 0:
            return f"own equity is {exposure.equity:.2f}: nothing may be added to"
        return self._off_price(request, reference) or self._beyond(request, change, exposure)

    def breach(self, equity: Decimal, day_start: Decimal, peak: Decimal) -> str | None:
        """Whether the loss of the day or the drawdown is above its limit, in words."""
        if day_start > 0 and 1 - equity / day_start > Decimal(str(self._limits.daily_loss)):
            loss = 1 - equity / day_start
            return f"the day's loss of {loss:.2%} is above the limit of {self._limits.daily_loss:.2%}"
        if peak > 0 and 1 - equity / peak > Decimal(str(self._limits.drawdown)):
            loss = 1 - equity / peak
            return f"the drawdown of {loss:.2%} is above the limit of {self._limits.drawdown:.2%}"
        return None

    def _off_price(self, request: OrderRequest, reference: Decimal) -> str | None:
        if not self._collar or request.type is not OrderType.LIMIT or request.limit_price is None:
            return None
        away = abs(request.limit_price / reference - 1)
        if away > self._collar * _HAIR + Decimal("0.01") / reference:  # limits are rounded to the price's step
            return f"its limit price is {away:.2%} from the decision's price, the collar is {self._collar:.2%}"
        return None

    def _beyond(self, request: OrderRequest, change: Decimal, exposure: Exposure) -> str | None:
        after = {
            symbol: exposure.positions.get(symbol, ZERO) + exposure.live.get(symbol, ZERO)
            for symbol in {*exposure.positions, *exposure.live, request.symbol}
        }
        after[request.symbol] += change
        unknown = [symbol for symbol, shares in after.items() if shares and symbol not in exposure.prices]
        if unknown:
            return f"the price of {unknown[0]}, which is held, is not known"
        values = {symbol: shares * exposure.prices[symbol] for symbol, shares in after.items() if shares}
        size = abs(change) * exposure.prices[request.symbol]
        figures = (
            ("order", size, self._limits.max_order),
            ("position", abs(values.get(request.symbol, ZERO)), self._limits.max_position),
            ("gross exposure", sum(map(abs, values.values()), ZERO), self._limits.max_gross),
            ("net exposure", abs(sum(values.values(), ZERO)), self._limits.max_net),
            ("turnover of the day", exposure.traded + size, self._limits.max_turnover),
        )
        for name, value, limit in figures:
            if value > Decimal(str(limit)) * exposure.equity * _HAIR:
                share = value / exposure.equity
                return f"its {name} would be {share:.1%} of equity, the limit is {limit:.1%}"
        return None


def state_in(store: Store) -> RiskState:
    """What a journal says; ACTIVE in a new one."""
    row = store.last(schema.risk_states)
    return RiskState.ACTIVE if row is None else RiskState(row.state)


def tighten(store: Store, state: RiskState, reason: str, at: datetime) -> bool:
    """Write a stricter state into a journal; False where the present one is as strict already."""
    order = list(RiskState)
    if order.index(state) <= order.index(state_in(store)):
        return False
    store.add(schema.risk_states, at, state=state.value, reason=reason)
    return True


def reduces(held: Decimal, change: Decimal) -> bool:
    """The change makes the position smaller and does not turn it round."""
    return held * change < 0 and abs(change) <= abs(held)

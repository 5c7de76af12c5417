"""State that decisions leave in the journal: virtual holdings, the account of the base, and the active return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from finrl_pod.market.orders import PositionTarget
from finrl_pod.paper.domain.intents import FLATTEN
from finrl_pod.paper.domain.records import CorporateAction
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add

StrategyState = Mapping[str, Any]  # JSON values of `MandatedStrategy.state`
TAKEN = ("orders", "hold", "target")  # outcomes of decisions that were taken


@dataclass(frozen=True)
class ActiveReturn:
    """Log return of own equity less the base growth over `bars` sessions, at most a year.

    lower, level: lower edge of the band of the backtest and its probability; None without a band. left: the value is
    below the edge.
    """

    bars: int
    value: float
    lower: float | None
    level: float | None
    left: bool


@dataclass(frozen=True)
class BaseAccount:
    """The base account after a decision.

    time: last bar. started: first bar. growth: value of an account that started with 1. held, target: weights by
    symbol; the target is bought in the next auction, None keeps the holdings. strategy: virtual holdings of the base.
    """

    time: str
    started: str
    growth: float
    held: Mapping[str, float]
    target: Mapping[str, float] | None
    strategy: StrategyState | None
    active_return: ActiveReturn | None = None


@dataclass(frozen=True)
class DecisionState:
    """State that a decision leaves for the next one: virtual holdings of the strategy, and the account of its base."""

    strategy: StrategyState | None = None
    base: BaseAccount | None = None

    def encode(self) -> str | None:
        """JSON for the journal; None for an empty state."""
        return None if self == DecisionState() else json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, content: str) -> DecisionState:
        """Read the JSON of `encode`. Raises ValueError for other content."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_json(content)


class TargetState(StrEnum):
    """OPEN while shares are missing; the others end a target."""

    OPEN = "open"
    REACHED = "reached"
    REPLACED = "replaced"
    MISSED = "missed"
    DROPPED = "dropped"


@dataclass(frozen=True)
class KeptTarget:
    """Positions that a decision aims at, by symbol. bar: decision bar. until: last bar of which orders are sent."""

    bar: date
    until: date
    positions: Mapping[str, PositionTarget]

    def by_symbol(self, symbols: Sequence[str]) -> list[PositionTarget | None]:
        """The targets of these symbols, None without one."""
        return [self.positions.get(symbol) for symbol in symbols]

    def adjusted(self, actions: Sequence[CorporateAction], last_session: date, session: date) -> KeptTarget:
        """The same target in shares after the splits with since < ex-date <= today."""
        positions = dict(self.positions)
        for action in actions:
            target = positions.get(action.symbol)
            if target is not None and action.changes_shares and last_session < action.ex_date <= session:
                positions[action.symbol] = PositionTarget(target.shares * action.ratio, target.weight)
        return KeptTarget(self.bar, self.until, positions)


def new_target(
    calendar: Calendar, bar: date, sessions: int, symbols: Sequence[str], targets: Sequence[PositionTarget | None]
) -> KeptTarget:
    """The target of a decision on `bar`, kept for that many sessions after its first."""
    days = calendar.sessions(bar, bar + timedelta(days=2 * sessions + 14))
    positions = {s: t for s, t in zip(symbols, targets, strict=True) if t is not None}
    return KeptTarget(bar, days[sessions].date, positions)


def decode_weights(text: str) -> dict[str, float]:
    """The target weights of a decision, by symbol. Raises ValueError, TypeError or AttributeError for other content."""
    return {symbol: float(weight) for symbol, weight in json.loads(text).items()}


def skip_reasons(outcome: str, detail: str) -> dict[str, str]:
    """Why a decision has no order in some symbols, by symbol; empty if it was not taken.

    Raises ValueError or AttributeError if the detail of a decision that was taken is no JSON object.
    """
    return {symbol: str(reason) for symbol, reason in json.loads(detail).items()} if outcome in TAKEN else {}


def decode_positions(text: str) -> dict[str, PositionTarget]:
    """The positions of a row of targets, by symbol."""
    return {s: PositionTarget(Decimal(shares), weight) for s, (shares, weight) in json.loads(text).items()}


def open_target(store: Store, run: str) -> tuple[KeptTarget, date] | None:
    """The current target of a run, if it is still open, and the last session that its shares refer to."""
    row = store.last(schema.targets, schema.targets.c.run == run)
    if row is None or row.state != TargetState.OPEN:
        return None
    bar = date.fromisoformat(row.bar)
    target = KeptTarget(bar, date.fromisoformat(row.until), decode_positions(row.positions))
    return target, date.fromisoformat(row.session)


def was_flattened(store: Store, run: str) -> bool:
    """Whether own shares were sold by a flatten command since the run's target was last seen."""
    row = store.last(schema.targets, schema.targets.c.run == run)
    intents = schema.intents.c
    return (
        row is not None
        and store.last(schema.intents, intents.bar.like(f"{FLATTEN}-%"), intents.at > row.at) is not None
    )


def write_target(
    connection: Connection, now: datetime, run: str, cycle: TradingCycle, target: KeptTarget, state: TargetState,
    distance: Decimal,
) -> None:  # fmt: skip
    """Add a row about a target in a cycle. distance: missing value as a share of equity."""
    positions = {symbol: [str(t.shares), t.weight] for symbol, t in target.positions.items()}
    add(
        connection, schema.targets, now, run=run, bar=target.bar.isoformat(), session=cycle.session.date.isoformat(),
        until=target.until.isoformat(), state=state.value, positions=json.dumps(positions, sort_keys=True),
        distance=str(distance),
    )  # fmt: skip


def largest_distance(store: Store) -> float:
    """The largest share of equity that was still missing when a target ended, 0 if none was."""
    is_final = schema.targets.c.state.in_((TargetState.REACHED, TargetState.REPLACED, TargetState.MISSED))
    return max((float(row.distance) for row in store.rows(schema.targets, is_final)), default=0.0)

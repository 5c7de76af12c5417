"""Settings of the fake server. Defaults follow the documented behaviour of Alpaca paper accounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from finrl_pod.errors import InputError

MAX_SECONDS = 1e8  # of delays and of the skew of the clock; with more, times leave the calendar

Delay = Annotated[float, Field(ge=0.0, le=MAX_SECONDS)]
Record = TypeVar("Record")


@dataclass(frozen=True)
class CorporateAction:
    """A split (`new` shares for `old`) or a cash dividend (`cash` dollars per share), effective before the open.

    ex_date: date of a session, "YYYY-MM-DD". Raises InputError for a split ratio of 1 and for amounts of 0 or less.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    symbol: str
    ex_date: str
    kind: Literal["split", "dividend"] = "split"
    new: float = 1.0
    old: float = 1.0
    cash: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "split" and not (self.new > 0 and self.old > 0 and self.new != self.old):
            raise InputError(
                f"split of {self.symbol} on {self.ex_date}: `new` and `old` must be > 0 and different, "
                f"got {self.new} and {self.old}"
            )
        if self.kind != "split" and not self.cash > 0:
            raise InputError(f"{self.kind} of {self.symbol} on {self.ex_date}: `cash` must be > 0, got {self.cash}")


@dataclass(frozen=True)
class Settings:
    """Settings of the account, the market, and the details about which Alpaca documents and clients disagree.

    cash: dollars at the start. multiplier: 1 for a cash account, 2 or 4 for margin.
    key, secret: API keys that a client must send; empty accepts any non-empty value. seed: seed of every random number.
    partial: probability that an order fills in two parts, at most `partial_gap` simulated seconds apart.
    fill_delay, cancel_delay: simulated seconds until a marketable order fills, or a cancel takes effect.
    cost_bps: fee on each fill in basis points, booked as a FEE activity (Alpaca charges none).
    rate_limit: requests per minute, for the trading API and the market data API each.
    duplicate_code: error code for a repeated client order id. max_client_order_id_length: 48 or 128.
    qty_and_notional_status: HTTP status for an order with both quantity and dollar amount, 400 or 422.
    day_trading_rule: serve the account fields on day trading that Alpaca removed in 2026, and refuse, as until then,
    the fourth day trade in five sessions of an account below $25,000.
    sip: the account may read the consolidated feed. crypto: the panel symbols are pairs such as BTC/USD that trade
    around the clock by GTC and IOC orders; it needs a bar of every day. actions: corporate actions of the panel.

    Raises InputError for a value out of range.
    """

    cash: Decimal = Decimal(100_000)
    multiplier: int = 2
    shorting: bool = True
    key: str = ""
    secret: str = ""
    seed: int = 0
    partial: float = 0.1
    partial_gap: float = 30.0
    fill_delay: float = 0.0
    cancel_delay: float = 0.0
    cost_bps: Decimal = Decimal(0)
    rate_limit: int = 200
    duplicate_code: int = 40010001
    max_client_order_id_length: int = 128
    qty_and_notional_status: int = 422
    day_trading_rule: bool = False
    sip: bool = True
    crypto: bool = False
    actions: tuple[CorporateAction, ...] = ()

    def __post_init__(self) -> None:
        checks = {
            "cash": (self.cash > 0, "> 0"),
            "multiplier": (self.multiplier in (1, 2, 4), "1, 2 or 4"),
            "partial": (0 <= self.partial <= 1, "between 0 and 1"),
            "partial_gap": (self.partial_gap >= 0, ">= 0"),
            "fill_delay": (self.fill_delay >= 0, ">= 0"),
            "cancel_delay": (self.cancel_delay >= 0, ">= 0"),
            "cost_bps": (0 <= self.cost_bps < 10_000, ">= 0 and below 10000"),
            "rate_limit": (self.rate_limit > 0, "> 0"),
            "duplicate_code": (self.duplicate_code in (40010001, 42210000), "40010001 or 42210000"),
            "max_client_order_id_length": (self.max_client_order_id_length in (48, 128), "48 or 128"),
            "qty_and_notional_status": (self.qty_and_notional_status in (400, 422), "400 or 422"),
        }
        for name, (valid, rule) in checks.items():
            if not valid:
                raise InputError(f"fake server: {name} must be {rule}, got {getattr(self, name)}")


@dataclass
class MarketConditions:
    """Conditions that tests change while the server runs, through `POST /fake/conditions`. Delays in simulated seconds.

    halted_symbols: symbols whose orders wait. untradable: symbols whose orders are refused.
    whole_shares: symbols of which no fractions are traded.
    partial, partial_gap: settings of the same names. is_suspended: the user has switched off new orders.
    clock_skew: seconds added to the time that GET clock returns.
    """

    halted_symbols: set[str] = field(default_factory=set)
    untradable: set[str] = field(default_factory=set)
    whole_shares: set[str] = field(default_factory=set)
    fill_delay: float = 0.0
    cancel_delay: float = 0.0
    replace_delay: float = 0.0
    partial: float = 0.0
    partial_gap: float = 0.0
    is_suspended: bool = False
    clock_skew: float = 0.0


@dataclass(frozen=True)
class BarEdit:
    """Other values of the bar of a day, "YYYY-MM-DD", or of every bar of the symbol."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    symbol: str
    fields: dict[str, Any]
    date: str = ""


@dataclass(frozen=True)
class ConditionsChange:
    """A request to change `MarketConditions`, the date of the last bar that is served, and bars; None leaves them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    halted: set[str] | None = None
    untradable: set[str] | None = None
    whole_shares: set[str] | None = None
    suspended: bool | None = None
    fill_delay: Delay | None = None
    cancel_delay: Delay | None = None
    replace_delay: Delay | None = None
    clock_skew: Annotated[float, Field(ge=-MAX_SECONDS, le=MAX_SECONDS)] | None = None
    stale_after: str | None = None
    edits: list[BarEdit] | None = None


def read_records(path: Path, kind: type[Record]) -> list[Record]:
    """Records of a kind from a JSON list. Raises InputError with the file and the entry at fault."""
    try:
        return TypeAdapter(list[kind]).validate_json(path.read_bytes())  # type: ignore[valid-type]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """The place of the first fault in JSON values, and what is wrong there."""
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else fault["msg"]

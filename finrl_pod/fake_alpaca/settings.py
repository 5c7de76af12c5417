"""What the stand-in can be told; each default is what Alpaca's paper accounts do, where that is known."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import InputError


@dataclass(frozen=True)
class CorporateAction:
    """A split (`new` shares for `old`) or a cash dividend (`cash` a share), effective before the open of `ex_date`.

    ex_date: "YYYY-MM-DD", a session.
    """

    symbol: str
    ex_date: str
    kind: Literal["split", "dividend"] = "split"
    new: float = 1.0
    old: float = 1.0
    cash: float = 0.0

    def __post_init__(self) -> None:
        good = self.new > 0 and self.old > 0 and self.new != self.old if self.kind == "split" else self.cash > 0
        if not good:
            raise InputError(
                f"the {self.kind} of {self.symbol} on {self.ex_date} needs positive rates that differ, or cash"
            )


@dataclass(frozen=True)
class Settings:
    """The account, the market's manners, and what sources disagree about.

    key, secret: what a client must show; empty: anything that is not empty will do.
    seed: of every random number. partial: probability that an order fills in two parts, `partial_gap` simulated seconds
    apart at most. fill_delay, cancel_delay: simulated seconds until a marketable order fills, a cancel is through.
    cost_bps: a fee on each fill in hundredths of a percent, booked as a FEE activity (Alpaca takes none).
    rate_limit: requests a minute for each of trading and data together.
    duplicate_code, longest_id, both_status: how a repeated client_order_id is refused, how long one may be, how qty
    together with notional is refused. replace_counts_filled: the quantity of a replacement includes what the original
    had filled. removed_fields: serve the account's fields of day trading that Alpaca removed in 2026.
    old_day_trading: refuse, as until 2026, a fourth day trade of an account below 25,000.
    title_words: kinds of corporate announcements are written Split (documents), else split (client).
    sip: the account may read the consolidated feed.
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
    longest_id: int = 128
    both_status: int = 422
    replace_counts_filled: bool = False
    removed_fields: bool = False
    old_day_trading: bool = False
    title_words: bool = True
    sip: bool = True
    actions: tuple[CorporateAction, ...] = field(default=())

    def __post_init__(self) -> None:
        ranges = {
            "cash": self.cash > 0,
            "multiplier": self.multiplier in (1, 2, 4),
            "partial": 0 <= self.partial <= 1,
            "partial_gap": self.partial_gap >= 0,
            "fill_delay": self.fill_delay >= 0,
            "cancel_delay": self.cancel_delay >= 0,
            "cost_bps": 0 <= self.cost_bps < 10_000,
            "rate_limit": self.rate_limit > 0,
            "duplicate_code": self.duplicate_code in (40010001, 42210000),
            "longest_id": self.longest_id in (48, 128),
            "both_status": self.both_status in (400, 422),
        }
        for name, good in ranges.items():
            if not good:
                raise InputError(f"the fake server's {name} is out of its range, got {getattr(self, name)}")


def read_actions(path: Path) -> tuple[CorporateAction, ...]:
    """A JSON list of corporate actions. Raises InputError naming the file or the entry."""
    known = {f.name for f in dataclasses.fields(CorporateAction)}
    actions = []
    for entry in read_list(path):
        if not isinstance(entry, dict) or not {"symbol", "ex_date"} <= set(entry) <= known:
            raise InputError(
                f"{path}: an action is an object with symbol, ex_date and some of {', '.join(sorted(known))}"
            )
        actions.append(CorporateAction(**entry))
    return tuple(actions)


def read_list(path: Path) -> list[Any]:
    """Raises InputError unless the file is a JSON list."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, list):
        raise InputError(f"{path} must hold a JSON list")
    return values

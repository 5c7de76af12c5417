"""Which settings a daemon may have: each by itself, and all together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import ConfigError
from finrl_pod.ranges import (
    ABOVE_AND_FINITE,
    Range,
    Ranges,
    above_to,
    at_least,
    between,
    check_ranges,
    check_value,
    from_to_below,
)

if TYPE_CHECKING:
    from finrl_pod.paper.settings import PaperConfig

DAY = 86_400
LONGEST_NAME = 64
BROKER: Ranges = {"cost_bps": from_to_below(0, 10_000)}
SCHEDULE: Ranges = {"lead_minutes": between(3, 180)}
ORDERS: Ranges = {
    "cash_buffer": from_to_below(0, 1),
    "collar": from_to_below(0, 1),
    "min_value": at_least(0),
}
DATA: Ranges = {
    "window": Range("0 (all) or 2 to 100,000 sessions", lambda x: x == 0 or 2 <= x <= 100_000),
    "max_jump": ABOVE_AND_FINITE,
}
OUTSIDE: Ranges = {"port": between(0, 65_535)}
WHOLE: Ranges = {
    "name": Range(
        f"1 to {LONGEST_NAME} characters that can be printed", lambda x: 0 < len(x) <= LONGEST_NAME and x.isprintable()
    ),
    # Beyond that not even cents of it are exact in a float, and no account is so large.
    "capital": above_to(0, 1e12),
}


def check(config: PaperConfig, where: str) -> None:
    """Raises ConfigError for the first setting that is out of its range, and for some that cannot hold together.

    where: what the settings are from, for the sentence.
    """
    for name, allowed in WHOLE.items():
        check_value(f"{where}: ", config, name, getattr(config, name), allowed)
    sections: dict[str, tuple[Any, Ranges]] = {
        "broker": (config.broker, BROKER),
        "schedule": (config.schedule, SCHEDULE),
        "orders": (config.orders, ORDERS),
        "risk": (config.risk, _all(config.risk, ABOVE_AND_FINITE)),
        "data": (config.data, DATA),
        "timing": (config.timing, _all(config.timing, above_to(0, DAY))),
        "outside": (config.outside, OUTSIDE),
    }
    for name, (section, ranges) in sections.items():
        check_ranges(f"{where}: {name}", section, ranges)
    _check_subject(config, where)
    _check_limits(config, where)
    _check_auction(config, where)


def _all(section: Any, allowed: Range) -> Ranges:
    return {field.name: allowed for field in dataclasses.fields(section)}


def _check_subject(config: PaperConfig, where: str) -> None:
    if bool(config.strategy) == bool(config.run):
        raise ConfigError(f"{where}: name either a strategy or the folder of a promoted run, one of the two")
    if not config.symbols or len(set(config.symbols)) != len(config.symbols):
        raise ConfigError(f"{where}: symbols must name each symbol to trade once, got {list(config.symbols)}")


def _check_limits(config: PaperConfig, where: str) -> None:
    risk = config.risk
    if risk.max_position > risk.max_gross:
        raise ConfigError(
            f"{where}: risk.max_position {risk.max_position:g} is above risk.max_gross {risk.max_gross:g}, which no "
            "position could reach: lower the first"
        )
    if risk.max_net > risk.max_gross:
        raise ConfigError(
            f"{where}: risk.max_net {risk.max_net:g} is above risk.max_gross {risk.max_gross:g}: lower the first"
        )


def _check_auction(config: PaperConfig, where: str) -> None:
    orders, schedule = config.orders, config.schedule
    if schedule.mode != "close":
        return
    if orders.fractional:
        raise ConfigError(
            f"{where}: fractional orders cannot join the closing auction (they are DAY orders): set "
            'orders.fractional = false or schedule.mode = "open"'
        )
    if orders.funding == "after_sales":
        raise ConfigError(
            f"{where}: after the closing auction nothing can be bought with what its sales brought: set "
            'orders.funding = "together" or schedule.mode = "open"'
        )
    if schedule.lead_minutes < 11:
        raise ConfigError(
            f"{where}: orders for the closing auction are refused from 10 minutes before it: set "
            f"schedule.lead_minutes to 11 or more, got {schedule.lead_minutes:g}"
        )

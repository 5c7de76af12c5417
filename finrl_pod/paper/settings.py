"""The settings of a paper-trading daemon: one TOML file, frozen records, unknown keys refused."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import (
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


@dataclass(frozen=True)
class BrokerSettings:
    """kind: who keeps the account. url, data_url: of the broker; empty for Alpaca's paper trading and data hosts.

    feed: "iex" or "sip". panel: prices of the simulated broker, a name in the store. clock: file of a shared scaled
    clock, accepted with loopback addresses alone. cost_bps: what the simulated broker charges, each side.
    """

    kind: Literal["simulated", "alpaca", "alpaca-trade-api"] = "alpaca"
    url: str = ""
    data_url: str = ""
    feed: Literal["iex", "sip"] = "iex"
    panel: str = "sample"
    clock: str = ""
    cost_bps: float = 0.0


@dataclass(frozen=True)
class ScheduleSettings:
    """mode: orders fill in the opening auction of the session after the decision bar, or in its closing auction.

    lead_minutes: how long before the auction the decision is taken.
    """

    mode: Literal["open", "close"] = "open"
    lead_minutes: float = 30.0


@dataclass(frozen=True)
class OrderSettings:
    """cash_buffer: share of equity that is never invested. fractional: shares in 9 decimals, else whole ones.

    collar: limit prices stand that far from the decision's price; 0 sends market orders. funding: buys go into the
    same auction as the sales that pay for them, or wait until these have filled. min_value: smaller orders are left.
    """

    cash_buffer: float = 0.02
    fractional: bool = False
    collar: float = 0.1
    funding: Literal["together", "after_sales"] = "together"
    min_value: float = 1.0


@dataclass(frozen=True)
class RiskSettings:
    """Limits as shares of own equity. An order that only reduces a position passes all but a halt.

    daily_loss, drawdown: beyond them only reducing orders are sent, until `resume`.
    """

    max_position: float = 0.4
    max_gross: float = 1.0
    max_net: float = 1.0
    max_order: float = 0.5
    max_turnover: float = 2.0
    daily_loss: float = 0.05
    drawdown: float = 0.25


@dataclass(frozen=True)
class DataSettings:
    """window: sessions of adjusted history fetched for each decision, 0: all there are. max_jump: a change of price
    from one session to the next above this share must be explained by a corporate action or a second look.
    """

    window: int = 600
    max_jump: float = 0.4


@dataclass(frozen=True)
class TimingSettings:
    """Seconds of the daemon's clock. poll: between looks at open orders. lookup: how long an order of unknown fate is
    looked for before it counts as not accepted. stale_stream: silence of the stream after polling has found what it
    should have told; then an alarm is raised and the stream connected anew. shutdown: for cancels at the end. drift: of
    the host's clock from the broker's that raises an alarm.
    """

    poll: float = 5.0
    lookup: float = 30.0
    stale_stream: float = 90.0
    shutdown: float = 30.0
    drift: float = 60.0


@dataclass(frozen=True)
class MonitoringSettings:
    """heartbeat: a file. port: of health and metrics on loopback, 0: none.

    webhook: address for signed alerts (secret in FINRL_POD_WEBHOOK_SECRET); addresses of e-mail, Telegram and others
    are read from FINRL_POD_ALERT_URLS.
    """

    heartbeat: str = ""
    port: int = 0
    webhook: str = ""


@dataclass(frozen=True)
class PaperConfig:
    """Everything a daemon depends on. strategy: a baseline's name, or run: the folder of a promoted run."""

    name: str = "paper"
    journal: str = "paper/journal.sqlite"
    strategy: str = ""
    run: str = ""
    symbols: tuple[str, ...] = ()
    capital: float = 100_000.0
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    orders: OrderSettings = field(default_factory=OrderSettings)
    risk: RiskSettings = field(default_factory=RiskSettings)
    data: DataSettings = field(default_factory=DataSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)


def load(path: Path) -> PaperConfig:
    """Read a TOML file; the paths in it are taken from its folder. Raises ConfigError naming key and value."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of Unicode, TOML, and numbers and nesting beyond all sense
        raise ConfigError(f"config {path} is not TOML: {error}") from None
    config = parse(values, str(path))

    def beside(name: str) -> str:
        return str(path.parent / name) if name else ""

    return dataclasses.replace(
        config,
        journal=beside(config.journal),
        run=beside(config.run),
        broker=dataclasses.replace(config.broker, clock=beside(config.broker.clock)),
        monitoring=dataclasses.replace(config.monitoring, heartbeat=beside(config.monitoring.heartbeat)),
    )


def parse(values: dict[str, Any], where: str = "config") -> PaperConfig:
    """Check plain values. Raises ConfigError on the first fault, also for limits that cannot hold together."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

    adapter = TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(PaperConfig))
    try:
        config = adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "unexpected_keyword_argument":
            raise ConfigError(f"{where}: unknown key {key}; {_nearest(first['loc'])}") from None
        raise ConfigError(f"{where}: {key}: {first['msg']}, got {first['input']!r}") from None
    check(config, where)
    return config


def plain(config: PaperConfig) -> dict[str, Any]:
    """What `parse` takes, for the journal: whole paths, and no webhook, whose address may hold a secret."""
    monitoring = dataclasses.replace(config.monitoring, webhook="")
    if monitoring.heartbeat:
        monitoring = dataclasses.replace(monitoring, heartbeat=str(Path(monitoring.heartbeat).absolute()))
    run = str(Path(config.run).absolute()) if config.run else ""
    journal = str(Path(config.journal).absolute())
    return dataclasses.asdict(dataclasses.replace(config, monitoring=monitoring, run=run, journal=journal))


def unpack(content: str) -> PaperConfig:
    """`plain` as JSON, which the journal keeps. Raises ConfigError for settings that this version does not know."""
    return parse(json.loads(content), "the settings in the journal")


RENAMED = {"outside": "monitoring"}  # former keys


def _nearest(place: tuple[int | str, ...]) -> str:
    if len(place) == 1 and place[0] in RENAMED:
        return f"it is now called {RENAMED[str(place[0])]}"
    record: Any = PaperConfig()
    for part in place[:-1]:
        record = getattr(record, str(part))
    known = [f.name for f in dataclasses.fields(record)]
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


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
MONITORING: Ranges = {"port": between(0, 65_535)}
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
        "monitoring": (config.monitoring, MONITORING),
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

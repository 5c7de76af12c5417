"""Settings of the paper-trading daemon: one TOML file, frozen records, unknown keys refused."""

# ruff: noqa: RUF009 (setting() and section() return dataclass fields)

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import (
    POSITIVE_FINITE,
    Constraint,
    above_and_at_most,
    at_least,
    at_least_and_below,
    between,
    check_settings,
    section,
    setting,
)
from finrl_pod.settings.toml import build_record, read_toml
from finrl_pod.user_files import is_custom, is_file_reference

BROKERS = ("simulated", "alpaca", "alpaca-crypto")
DAY = 86_400  # seconds
MAX_NAME_LENGTH = 64
MAX_CAPITAL = 1e12  # larger floats do not represent cents exactly
SHARE_TOLERANCE = 1e-9
PARTIAL_LIMITS = ("max_position", "max_order", "max_turnover")  # that each of several strategies may set
PAPER_ONLY = {"strategy", "run", "champion", "strategies", "symbols", "journal", "broker", "schedule"}
# Sections of a tournament config.
OF_TOURNAMENTS = ("tournament", "agent", "features", "environment", "splits", "mandate", "gate")


@dataclass(frozen=True)
class BrokerSettings:
    """Connection to the broker."""

    kind: str = setting(
        "alpaca",
        f"broker ({' | '.join(BROKERS)}), or a custom one",
        Constraint(
            f"one of {', '.join(BROKERS)}, file.py:Name, or package.module:Name",
            lambda kind: kind in BROKERS or is_custom(kind),
        ),
    )
    url: str = setting("", "address of the trading API; empty: Alpaca's paper trading")
    data_url: str = setting("", "address of the data API; empty: Alpaca's")
    feed: Literal["iex", "sip"] = setting("iex", "Alpaca's price feed")
    panel: str = setting("sample", "panel of the store that replays take prices from")
    clock: str = setting("", "file of a shared scaled clock; with loopback addresses only")
    cost_bps: float = setting(
        0.0, "simulated: cost of a trade in basis points, each side", at_least_and_below(0, 10_000)
    )

    @property
    def continuous(self) -> bool:
        """Whether it trades around the clock."""
        return self.kind == "alpaca-crypto"


@dataclass(frozen=True)
class ScheduleSettings:
    """When decisions are taken and orders fill."""

    mode: Literal["open", "close"] = setting(
        "open", "auction of the session after the decision bar in which orders fill"
    )
    lead_minutes: float = setting(30.0, "minutes from the decision to the auction", between(3, 180))


@dataclass(frozen=True)
class IntradaySettings:
    """Decisions within the session, on bars that are made from minute bars.

    Orders are DAY orders that are sent at once and cancelled before the next decision. data.window counts these bars.
    """

    minutes: int = setting(0, "minutes of a bar and between two decisions; 0: one decision a session", between(0, 120))


@dataclass(frozen=True)
class OrderSettings:
    """From target weights to orders."""

    cash_buffer: float = setting(0.02, "share of equity that is never invested", at_least_and_below(0, 1))
    fractional: bool = setting(False, "shares in 9 decimals; else whole shares")
    target_sessions: int = setting(
        5, "sessions after a decision's first in which missing shares are ordered again", between(0, 250)
    )
    collar: float = setting(
        0.1,
        "distance of limit prices from the decision's price, as a share; 0: market orders",
        at_least_and_below(0, 1),
    )
    funding: Literal["together", "after_sales"] = setting(
        "together", "together: buys join the auction of the sales that pay for them; after_sales: wait for their fills"
    )
    min_value: float = setting(1.0, "smaller orders are not sent, in currency", at_least(0))


@dataclass(frozen=True)
class RiskSettings:
    """Limits as shares of own equity. An order that only reduces a position passes all of them except a halt.

    Target weights and purchases are cut to them; an order that still exceeds one is not sent.

    Limits of 0 are set by `finrl_pod.paper.execution.mandate_limits.risk_limits`.
    """

    max_position: float = setting(0.0, "largest position; 0: from the mandate, 0.4 without one", at_least(0))
    max_gross: float = setting(1.0, "gross exposure", POSITIVE_FINITE)
    max_net: float = setting(1.0, "net exposure", POSITIVE_FINITE)
    max_order: float = setting(0.0, "largest order; 0: from the mandate, 0.5 without one", at_least(0))
    max_turnover: float = setting(
        0.0,
        "value traded, both sides, over equity, per session; 0: to buy the account under a mandate, 2 without one",
        at_least(0),
    )
    daily_loss: float = setting(0.05, "loss per session; beyond it only reducing orders are sent", POSITIVE_FINITE)
    drawdown: float = setting(0.25, "fall from the peak; beyond it only reducing orders are sent", POSITIVE_FINITE)


@dataclass(frozen=True)
class DataSettings:
    """Prices that decisions are based on."""

    window: int = setting(
        600,
        "sessions (with intraday.minutes: bars) of adjusted history fetched for each decision; 0: all sessions",
        Constraint("0 (all) or 2 to 100,000 sessions", lambda x: x == 0 or 2 <= x <= 100_000),
    )


@dataclass(frozen=True)
class TimingSettings:
    """Intervals and time-outs in seconds of the daemon clock."""

    poll: float = setting(5.0, "between two polls of open orders", above_and_at_most(0, DAY))


@dataclass(frozen=True)
class MonitoringSettings:
    """Heartbeat, health and alerts. Further alert channels are read from FINRL_POD_ALERT_URLS."""

    heartbeat: str = setting("", "heartbeat file, rewritten while the daemon runs; empty: none")
    port: int = setting(0, "loopback port of health and metrics; 0: none", between(0, 65_535))
    summary_minutes: float = setting(
        20.0, "minutes after each close until the end-of-day summary is sent; 0: none", between(0, 600)
    )
    telegram_users: tuple[int, ...] = setting(
        (), "ids of Telegram users who may send commands; the bot's token is read from FINRL_POD_TELEGRAM_TOKEN"
    )
    webhook: str = setting("", "address for signed alerts; their secret is read from FINRL_POD_WEBHOOK_SECRET")


@dataclass(frozen=True)
class StrategyConfig:
    """One of several strategies that share an account. Limits of 0 follow `risk`."""

    name: str = setting(
        "",
        "name in reports; part of every order's id",
        Constraint(
            f"1 to {MAX_NAME_LENGTH // 2} letters, digits, - and _",
            lambda x: 0 < len(x) <= MAX_NAME_LENGTH // 2 and x.replace("-", "").replace("_", "").isalnum(),
        ),
    )
    strategy: str = setting("", "as the config's; or set run or champion")
    run: str = setting("", "as the config's")
    champion: str = setting("", "as the config's")
    share: float = setting(0.0, "share of capital that it trades with", above_and_at_most(0, 1))
    max_position: float = setting(0.0, "largest position as a share of the strategy's equity", at_least(0))
    max_order: float = setting(0.0, "largest order as a share of the strategy's equity", at_least(0))
    max_turnover: float = setting(0.0, "value traded per session over the strategy's equity", at_least(0))


@dataclass(frozen=True)
class PaperConfig:
    """Complete configuration of a paper-trading daemon."""

    name: str = setting(
        "paper",
        "name of the account's run; part of every order's id",
        Constraint(
            f"1 to {MAX_NAME_LENGTH} printable characters",
            lambda x: 0 < len(x) <= MAX_NAME_LENGTH and x.isprintable(),
        ),
    )
    journal: str = setting(
        "paper/journal.sqlite", "SQLite file of the journal; paths are relative to the config's folder"
    )
    strategy: str = setting("", "a baseline by name, or your own as file.py:Class; or set run or champion")
    run: str = setting("", "folder of a promoted run, or of runs: the newest promoted one")
    champion: str = setting("", "name that `finrl-pod retrain` hands champions over to; or set strategy or run")
    registry: str = setting(
        "", "folder or URL of the registry with these champions; empty: FINRL_POD_REGISTRY, else the user's data folder"
    )
    strategies: tuple[StrategyConfig, ...] = setting((), "several strategies in one account; or set one above")
    symbols: tuple[str, ...] = setting((), "symbols to trade")
    capital: float = setting(
        100_000.0, "currency to trade with; the rest of the account is not used", above_and_at_most(0, MAX_CAPITAL)
    )
    broker: BrokerSettings = section(BrokerSettings, "Connection to the broker.")
    schedule: ScheduleSettings = section(ScheduleSettings, "When decisions are taken and orders fill.")
    intraday: IntradaySettings = section(IntradaySettings, "Decisions within the session, on minute bars.")
    orders: OrderSettings = section(OrderSettings, "From target weights to orders.")
    risk: RiskSettings = section(RiskSettings, "Limits as shares of own equity.")
    data: DataSettings = section(DataSettings, "Prices that decisions are based on.")
    timing: TimingSettings = section(TimingSettings, "Intervals and time-outs in seconds.")
    monitoring: MonitoringSettings = section(MonitoringSettings, "Heartbeat, health and alerts.")


def load(path: Path) -> PaperConfig:
    """Read a TOML file; its paths are relative to its folder. Raises ConfigError naming key and value."""
    return _with_paths(parse(read_toml(path), str(path)), lambda name: str(path.parent / name))


def _with_paths(config: PaperConfig, change: Callable[[str], str]) -> PaperConfig:
    """The config with every path in it changed. URLs, and names that are no paths, stay."""

    def path(text: str) -> str:
        return change(text) if text and "://" not in text else text

    def reference(text: str) -> str:
        return change(text) if is_file_reference(text) else text

    return dataclasses.replace(
        config,
        journal=path(config.journal),
        registry=path(config.registry),
        strategy=reference(config.strategy),
        run=path(config.run),
        strategies=tuple(
            dataclasses.replace(strategy, strategy=reference(strategy.strategy), run=path(strategy.run))
            for strategy in config.strategies
        ),
        broker=dataclasses.replace(config.broker, clock=path(config.broker.clock), kind=reference(config.broker.kind)),
        monitoring=dataclasses.replace(config.monitoring, heartbeat=path(config.monitoring.heartbeat)),
    )


def parse(values: dict[str, Any], origin: str = "config") -> PaperConfig:
    """Build and check a config from plain values. Raises ConfigError for the first invalid one."""
    if not values.keys() & PAPER_ONLY and (tournament_sections := [name for name in OF_TOURNAMENTS if name in values]):
        raise ConfigError(
            f"{origin} is the config of a tournament: it has [{tournament_sections[0]}]. The daemon needs one with "
            "strategy, run or champion and symbols, see docs/paper-trading.md"
        )
    config: PaperConfig = build_record(PaperConfig, values, origin)
    check(config, origin)
    return config


def pack(config: PaperConfig) -> str:
    """JSON for `unpack`, as the journal keeps it: absolute paths, and no webhook (its address may be secret)."""
    absolute = _with_paths(config, lambda path: str(Path(path).absolute()))
    monitoring = dataclasses.replace(absolute.monitoring, webhook="")
    return json.dumps(dataclasses.asdict(dataclasses.replace(absolute, monitoring=monitoring)), sort_keys=True)


def allocations(config: PaperConfig) -> tuple[PaperConfig, ...]:
    """The config of each strategy, with its own name, capital and limits; a single one keeps the config."""
    if not config.strategies:
        return (config,)
    return tuple(
        dataclasses.replace(
            config,
            name=f"{config.name}/{strategy.name}",
            strategy=strategy.strategy,
            run=strategy.run,
            champion=strategy.champion,
            strategies=(),
            capital=round(config.capital * strategy.share, 2),
            risk=dataclasses.replace(
                config.risk, **{name: getattr(strategy, name) or getattr(config.risk, name) for name in PARTIAL_LIMITS}
            ),
        )
        for strategy in config.strategies
    )


def unpack(content: str) -> PaperConfig:
    """Config from the JSON of `pack`. Raises ConfigError for settings unknown to this version."""
    return parse(json.loads(content), "the settings in the journal")


def check(config: PaperConfig, origin: str) -> None:
    """Raises ConfigError for a setting out of its range, or that contradicts another. origin: their source."""
    check_settings(f"{origin}: ", config)
    for item in dataclasses.fields(config):
        if dataclasses.is_dataclass(record := getattr(config, item.name)):
            check_settings(f"{origin}: {item.name}.", record)
    for number, strategy in enumerate(config.strategies):
        check_settings(f"{origin}: strategies.{number}.", strategy)
    conflicts = itertools.chain(_strategy_conflicts(config), _order_conflicts(config))
    if (conflict := next(conflicts, None)) is not None:
        raise ConfigError(f"{origin}: {conflict}")


def _strategy_conflicts(config: PaperConfig) -> Iterator[str]:
    """What contradicts among strategies, symbols and limits, as the rest of a message."""
    risk = config.risk
    if sum(map(bool, (config.strategy, config.run, config.champion, config.strategies))) != 1:
        yield (
            "set exactly one of strategy (a baseline, or your own file.py:Class), run (the folder of a promoted run), "
            "champion (the name that champions are handed over to) and [[strategies]] (several of them)"
        )
    for number, strategy in enumerate(config.strategies):
        if sum(map(bool, (strategy.strategy, strategy.run, strategy.champion))) != 1:
            yield f"strategies.{number}: set exactly one of strategy, run and champion"
    names = [strategy.name for strategy in config.strategies]
    if len(set(names)) != len(names):
        yield f"each of [[strategies]] needs a unique name, got {names}"
    if (total := sum(strategy.share for strategy in config.strategies)) > 1 + SHARE_TOLERANCE:
        yield f"the shares of [[strategies]] must add up to at most 1, got {total:g}"
    if config.registry and not any((config.champion, *(strategy.champion for strategy in config.strategies))):
        yield "registry is only read for a champion; set champion, or remove registry"
    if not config.symbols or len(set(config.symbols)) != len(config.symbols):
        yield f"symbols must list each symbol to trade once, got {list(config.symbols)}"
    for name in ("max_position", "max_net"):
        if (value := getattr(risk, name)) > risk.max_gross:
            yield f"risk.{name} must be at most risk.max_gross {risk.max_gross:g}, got {value:g}"


def _order_conflicts(config: PaperConfig) -> Iterator[str]:
    """What contradicts between schedule, orders and market."""
    orders = config.orders
    minutes = config.intraday.minutes
    if config.schedule.mode == "close":
        if orders.fractional:
            yield (
                "fractional orders are DAY orders and cannot join the closing auction; set orders.fractional = false "
                'or schedule.mode = "open"'
            )
        if orders.funding == "after_sales":
            yield (
                'orders.funding = "after_sales" cannot buy after the closing auction; set orders.funding = "together" '
                'or schedule.mode = "open"'
            )
        if config.schedule.lead_minutes < 11:
            yield (
                "schedule.lead_minutes must be at least 11 for the closing auction, whose orders are refused in the "
                f"last 10 minutes; got {config.schedule.lead_minutes:g}"
            )
    if minutes and orders.funding == "after_sales":
        yield f'decisions every {minutes} minutes send all orders at once; set orders.funding = "together"'
    if minutes and not config.data.window:
        yield "data.window must be the number of bars that are read, 2 or more, with intraday.minutes"
    if config.broker.continuous and not orders.fractional:
        yield 'broker.kind = "alpaca-crypto" trades fractions; set orders.fractional = true'
    if config.broker.continuous and (config.schedule.mode != "open" or minutes):
        yield 'crypto is decided once a day, after midnight UTC; set schedule.mode = "open" and intraday.minutes = 0'


def require_daily_decisions(config: PaperConfig, what: str) -> None:
    """Raises ConfigError for a config that decides within the session, without prices for `what`."""
    if config.intraday.minutes:
        raise ConfigError(
            f"{what} has daily bars and cannot follow decisions every {config.intraday.minutes} minutes; set "
            "intraday.minutes = 0, or trade on a fake server: finrl-pod paper fake-alpaca"
        )

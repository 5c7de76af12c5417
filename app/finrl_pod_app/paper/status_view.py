"""Terminal output of the `finrl-pod paper` commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from finrl_pod.errors import count_text
from finrl_pod.paper.domain.records import SUMMARY
from finrl_pod.paper.execution.sizing import TargetStatus
from finrl_pod.paper.monitoring.status import ActiveReturnStatus, OrderStatusRow, PaperStatus
from finrl_pod_app.setup.terminal import make_console, print_lines

if TYPE_CHECKING:
    from finrl_pod.paper.journal.tax_lots import GainsReport
    from finrl_pod.paper.monitoring.alerts import AlertTest
    from finrl_pod.paper.monitoring.verification import Verification
    from finrl_pod_app.paper.adopted_journal import AdoptionReport
    from finrl_pod_app.paper.backtest_difference import ReplayReport, TrackReport
    from finrl_pod_app.paper.demo import DemoReport
    from finrl_pod_app.paper.owner_checks import StartChecks

_MAX_DIFFERENCES = 20
_EQUAL = "Orders, fills and equity equal the backtest to the cent."


def show_status(report: PaperStatus) -> None:
    """Print state and account, then positions, then alerts."""
    beat = report.daemon
    mark = report.equity
    slip = report.slippage
    last = report.last_decision
    is_stale = beat.running is False
    reason = f" ({report.reason})" if report.reason else ""
    daemon = "no heartbeat found" if beat.age_seconds is None else f"last heartbeat {beat.age_seconds:.0f} s ago"
    realised = "none yet" if slip.realised_bps is None else f"{slip.realised_bps:+.1f} bp of value"
    rows = {
        "state": report.state + reason + (", as of the last heartbeat" if is_stale else ""),
        "daemon": f"not running or stuck, {daemon}" if is_stale else daemon,
        "account": report.account or "unknown yet",
        "equity": "none yet" if mark is None else f"{mark.value:,.2f} at the close of {mark.session}",
        "cash": f"{report.cash:,.2f} of {report.capital:,.2f} allocated",
        "distance to target": _distances(report.targets),
        "active return": _active_return(report.active_return),
        "last decision": "none yet" if last is None else f"{last.bar}: {last.outcome} ({last.strategy})",
        "orders": f"{report.counts['orders']}, {count_text(report.counts['fills'], 'fill')}",
        "slippage": f"{realised}, modelled {slip.modelled_bps:+.1f} bp",
        "unpaid dividends": ", ".join(f"{symbol} {x:,.2f}" for symbol, x in report.unpaid_dividends.items()),
        "transfers": f"{report.transfers:+,.2f}" if report.transfers else "",
        "pending commands": ", ".join(report.waiting_commands),
    }
    table = Table(title=Text(report.name), title_justify="left", show_header=False)
    for key, value in rows.items():
        if value:
            table.add_row(Text(key, style="bold"), Text(value))
    _print(table)
    if report.strategies:
        strategy_table = Table("strategy", "share", "equity", "cash", "symbols held")
        for name, s in report.strategies.items():
            amounts = (f"{amount:,.2f}" for amount in (s.equity, s.cash))
            strategy_table.add_row(*map(Text, (name, f"{s.share:.0%}", *amounts, str(len(s.positions)))))
        _print(strategy_table)
    for title, positions in (
        ("own shares", report.positions), ("external shares (never traded)", report.foreign_positions),
    ):  # fmt: skip
        if positions:
            position_table = Table("symbol", title)
            for symbol, quantity in positions.items():
                position_table.add_row(Text(symbol), Text(str(quantity)))
            _print(position_table)
    _print(*(f"open: {i.side} {i.symbol}, {i.filled} of {i.quantity} filled" for i in report.open_intents))
    _print(*(f"{alert.at[:19]} {alert.level}: {alert.message}" for alert in report.alerts))


def show_orders(rows: Sequence[OrderStatusRow]) -> None:
    """Print one line per order."""
    table = Table(header_style="bold")
    columns = (
        *("bar", "symbol", "side", "quantity", "filled", "time_in_force", "limit_price", "state", "status"),
        "client_order_id",
    )
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=True)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        table.add_row(*(Text("" if value is None else str(value)) for value in values))
    _print(table)


def show_adoption(report: AdoptionReport) -> None:
    """Print the books of a rebuilt journal, and what to do next."""
    table = Table("symbol", "own shares", "other shares", header_style="bold")
    for symbol in sorted({*report.positions, *report.external}):
        shares = (report.positions.get(symbol, 0), report.external.get(symbol, 0))
        table.add_row(Text(symbol), *map(str, shares))
    _print(
        table,
        f"Cash of this run: {report.cash:,.2f}; {_trades(report.orders, report.fills)}",
        *(f"not recorded: {action}; compare the shares with the broker's" for action in report.unsupported),
    )
    if not report.written:
        _print(f"Nothing was written. To write it to {report.journal}, repeat the command with --yes")
        return
    _print(f"Written to {report.journal}: the next `paper run` trades on from it")
    if report.kept:
        _print(f"The former file is kept as {report.kept}")


def show_verification(report: Verification) -> None:
    """Print the result of each check, and the differences."""
    _print(*(f"{name}: {'equal' if is_equal else 'different'}" for name, is_equal in report.checks.items()))
    table = Table("check", "order or symbol", "journal", "broker", header_style="bold")
    for row in report.differences:
        table.add_row(*map(Text, (row.check, row.order or row.symbol, row.ours, row.broker)))
    if report.differences:
        _print(table)


def show_start_checks(report: StartChecks) -> None:
    """Print the result of each check before a start."""
    _print(*(f"{check.status:<8}{check.name}: {check.detail}" for check in report.checks))


def show_alert_test(test: AlertTest) -> None:
    """Print which receivers accepted the test alert."""
    lines = [
        f"{receiver.name}: {'delivered' if receiver.delivered else receiver.detail}" for receiver in test.receivers
    ]
    _print(*lines or ["no receiver is set"])


def show_gains(report: GainsReport) -> None:
    """Print figures by symbol, and the sum of the realised gains."""
    names = ("shares", "value", "unrealised_gain", "realised_gain", "dividends")
    table = Table("symbol", *(name.replace("_", " ") for name in names), header_style="bold")
    for symbol, figures in report.symbols.items():
        table.add_row(Text(symbol), *(f"{getattr(figures, name):,.2f}" for name in names))
    total = sum(figures.realised_gain for figures in report.symbols.values())
    _print(table, f"{count_text(len(report.realised), 'sold lot')}, realised gain {total:+,.2f}")


def show_replay(report: ReplayReport) -> None:
    """Print the result of a replay and its differences from the backtest."""
    _print(
        f"{report.strategy}, {report.first} to {report.last}: {count_text(report.sessions, 'session')}, "
        f"{_trades(report.orders, report.fills)}, equity {report.equity:,.2f}",
        *(f"{n} ({s.strategy}, {s.share:.0%}): equity {s.equity:,.2f}" for n, s in report.strategies.items()),
        f"Largest distance to a target at its end: {report.distance_to_target:.2%} of equity",
        *([_EQUAL] if report.same else []),
    )
    _print_differences(report.differences)
    _print(*(f"alert: {sentence}" for sentence in report.alerts[:_MAX_DIFFERENCES]))


def show_track(report: TrackReport) -> None:
    """Print final equity of account and backtest, and the causes of their difference."""
    equity = report.equity[-1]
    backtest = report.backtest[-1]
    _print(
        f"{report.strategy}, {report.sessions[0]} to {report.sessions[-1]}: equity {equity:,.2f}, "
        f"backtest {backtest:,.2f}, difference {(equity / backtest - 1) * 10_000:+.1f} bp"
    )
    if report.same:
        _print(_EQUAL)
        return
    strategies = report.strategies if len(report.strategies) > 1 else {}
    table = Table("cause", *strategies, "account", header_style="bold")
    for cause, value in report.attribution.items():
        values = (*(strategy.attribution[cause] for strategy in strategies.values()), value)
        table.add_row(cause.replace("_", " "), *(f"{amount:+,.2f}" for amount in values))
    _print(table)
    if report.alarm:
        _print(f"ALARM: the unexplained difference is above {report.unexplained_limit:,.2f}")
        _print_differences(report.differences)


def show_demo(report: DemoReport) -> None:
    """Print what the daemon traded, its last end-of-day summary, and the causes of its difference from the backtest."""
    counts = report.counts
    slip = report.slippage
    realised = "none" if slip.realised_bps is None else f"{slip.realised_bps:+.1f} bp"
    if alerts := [alert.message for alert in report.alerts if alert.kind != SUMMARY]:
        _print("Last alerts:", *alerts)
    folder = report.folder
    _print("Last end-of-day summary:", report.summary)
    _print("Difference from the backtest that sends the same orders, by cause:")
    show_track(report.track)
    _print(
        "The comparison ends one session before the summary, since equity is recorded at the next decision. Paper "
        "accounts are paid no dividends; the backtest has them.",
        f"The daemon traded from {report.days[0]} to {report.days[-1]}: {count_text(counts['decisions'], 'decision')}, "
        f"{_trades(counts['orders'], counts['fills'])}, {count_text(len(report.positions), 'open position')}, state "
        f"{report.state}.",
        f"Journal and broker: {'Reconciled' if report.agrees else 'NOT reconciled, their shares differ'}.",
        f"Slippage against closing prices of the decision: {realised} (it includes the market move until the fill).",
        f"More: finrl-pod paper status {folder}/paper.toml (or `paper orders`). The server log is in that folder.",
    )


@contextmanager
def replay_progress(start: date, end: date, *, quiet: bool) -> Iterator[Callable[[date], None]]:
    """Show a progress bar on standard error, on terminals only."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True, emoji=False), transient=True) as bars:
        task = bars.add_task("replaying", total=max((end - start).days, 1))
        yield lambda day: bars.update(task, completed=(day - start).days, description=f"replaying {day}")


def _print_differences(differences: Sequence[str]) -> None:
    _print(*differences[:_MAX_DIFFERENCES])
    if (omitted_count := len(differences) - _MAX_DIFFERENCES) > 0:
        _print(f"and {count_text(omitted_count, 'more difference')} (see --json)")


def _trades(orders: int, fills: int) -> str:
    return f"{count_text(orders, 'order')}, {count_text(fills, 'fill')}"


def _distances(targets: Mapping[str, TargetStatus]) -> str:
    """The value that open targets still miss, empty without one."""
    missing = {run: target for run, target in targets.items() if target.state == "open"}
    return ", ".join(f"{run}: {target.distance:.2%} of equity, until {target.until}" for run, target in missing.items())


def _active_return(active_return: ActiveReturnStatus | None) -> str:
    """The active return with the band edge, empty if it is not measured."""
    if active_return is None:
        return ""
    text = f"{active_return.value:+.2%} over {count_text(active_return.bars, 'session')}"
    if active_return.lower is None:
        return text
    return f"{text}, {'BELOW' if active_return.left else 'above'} the band's lower edge of {active_return.lower:+.2%}"


def _print(*items: str | Table) -> None:
    """Print lines, wrapped, and tables."""
    console = make_console()
    for item in items:
        if isinstance(item, str):
            print_lines(console, item)
        else:
            console.print(item)

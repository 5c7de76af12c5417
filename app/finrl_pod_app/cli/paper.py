"""`finrl-pod paper`: trade a paper account unattended, show its status, control it, and serve a fake broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finrl_pod_app.cli.options import Json, check_exists, echo, print_json, print_result

if TYPE_CHECKING:
    from finrl_pod.paper.journal.store import Store
    from finrl_pod.paper.settings import PaperConfig

DIFFERS = 1  # exit code
UNFIT = 2  # exit code: the daemon could not trade
ALERT_SECONDS = 30.0  # that an alert of the command line is tried to be delivered
POLL_INTERVAL = 0.05  # seconds between two checks for the result of a command

app = typer.Typer(help="Trade a paper account unattended; status, halt, replay.", no_args_is_help=True)

Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Config of the daemon; see docs/paper-trading.md.")]

Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait for the daemon's result.")]
DEFAULT = Path("paper.toml")


@app.command("run", epilog="Example: finrl-pod paper run paper.toml")
def run(
    config: Config = DEFAULT,
    allow_unpromoted: Annotated[
        bool, typer.Option("--allow-unpromoted", help="Trade a champion that was not promoted; on loopback only.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Check all that it needs and exit; sends no order.")] = False,
    as_json: Json = False,
) -> None:
    """Trade until stopped. Keys are read from APCA_API_KEY_ID and APCA_API_SECRET_KEY only.

    With --check: exit code 2 if a check failed.
    """
    from finrl_pod.paper.settings import load

    settings = load(config)
    if check:
        from finrl_pod_app.paper.owner_checks import check_start
        from finrl_pod_app.paper.status_view import show_start_checks

        result = check_start(settings, allow_unpromoted=allow_unpromoted)
        print_result(result, show_start_checks, as_json=as_json)
        if result.failed:
            raise typer.Exit(UNFIT)
        return
    from finrl_pod_app.paper.runner import run_daemon

    if allow_unpromoted:
        echo("*** Trading a champion that was NOT promoted, against a server on this machine. ***", err=True)
    run_daemon(settings, allow_unpromoted=allow_unpromoted)


@app.command("status", epilog="Example: finrl-pod paper status paper.toml --json")
def status(config: Config = DEFAULT, as_json: Json = False) -> None:
    """Show account, positions, open orders, state and recent alerts, also while the daemon is down."""
    from finrl_pod.paper.monitoring.status import status as read_status
    from finrl_pod_app.paper.status_view import show_status

    settings, store = _open(config)
    print_result(read_status(store, settings), show_status, as_json=as_json)


@app.command("orders", epilog="Example: finrl-pod paper orders paper.toml --last 20")
def orders(
    config: Config = DEFAULT,
    last: Annotated[int, typer.Option(min=1, help="Number of newest orders to list.")] = 50,
    as_json: Json = False,
) -> None:
    """List the orders of the journal, newest last."""
    from finrl_pod.files import record_values
    from finrl_pod.paper.monitoring.status import orders as read_orders
    from finrl_pod_app.paper.status_view import show_orders

    _, store = _open(config)
    rows = read_orders(store)[-last:]
    if as_json:
        print_json({"orders": [record_values(row) for row in rows]})
    else:
        show_orders(rows)


@app.command("verify", epilog="Example: finrl-pod paper verify paper.toml")
def verify(config: Config = DEFAULT, as_json: Json = False) -> None:
    """Compare equity, cash, positions, orders and fills with the broker. Exit code 1 if they differ; sends no order."""
    settings, store = _open(config)
    from finrl_pod_app.paper.owner_checks import verify_journal
    from finrl_pod_app.paper.status_view import show_verification

    result = verify_journal(settings, store)
    print_result(result, show_verification, as_json=as_json)
    if result.differences:
        raise typer.Exit(DIFFERS)


@app.command("halt", epilog="Example: finrl-pod paper halt paper.toml")
def halt(config: Config = DEFAULT, wait: Wait = 10.0, as_json: Json = False) -> None:
    """Stop sending orders and cancel the daemon's live orders until `resume`. Also works while the daemon is down."""
    # A missing result is not a failure: without a daemon there are no orders, and a starting one reads the halt first.
    _submit(config, "halt", wait, as_json=as_json)


@app.command("resume", epilog="Example: finrl-pod paper resume paper.toml")
def resume(config: Config = DEFAULT, wait: Wait = 10.0, as_json: Json = False) -> None:
    """Resume trading after a halt, a loss limit or a flatten."""
    _submit(config, "resume", wait, as_json=as_json)


@app.command("reconcile", epilog="Example: finrl-pod paper reconcile paper.toml --acknowledge")
def reconcile(
    config: Config = DEFAULT,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge", help="Accept the account's state: differences become external holdings.")
    ] = False,
    wait: Wait = 30.0,
    as_json: Json = False,
) -> None:
    """Compare the journal with the broker. Exit code 1 if they disagree or no daemon responds."""
    _submit(config, "acknowledge" if acknowledge else "reconcile", wait, as_json=as_json, needs_result=True)


@app.command("flatten", epilog="Example: finrl-pod paper flatten paper.toml")
def flatten(config: Config = DEFAULT, wait: Wait = 30.0, as_json: Json = False) -> None:
    """Sell all shares the daemon bought; nothing is bought until `resume`.

    Exit code 1 if it was refused or no daemon responds.
    """
    _submit(config, "flatten", wait, as_json=as_json, needs_result=True)


@app.command("rollback", epilog="Example: finrl-pod paper rollback paper.toml")
def rollback(config: Config = DEFAULT, as_json: Json = False) -> None:
    """Return to the champion traded before. The daemon takes it at its next decision, also if it is down now."""
    from finrl_pod.errors import ConfigError
    from finrl_pod.paper.settings import load

    settings = load(config)
    if not settings.champion:
        raise ConfigError("the config trades no champion of the registry: set champion to the name of a strategy")
    from finrl_pod.registry.agent_registry import AgentRegistry
    from finrl_pod.registry.handover import roll_back

    change = roll_back(AgentRegistry(settings.registry), settings.champion)
    document = {"strategy": change.strategy, "champion": change.champion, "replaced": change.replaced,
                "previous": change.previous}  # fmt: skip
    text = (
        f"strategy {change.strategy} goes back from champion {(change.replaced or '')[:12]} to "
        f"{change.champion[:12]}, from the next decision of the daemon on"
    )
    print_result(document, text, as_json=as_json)


@app.command("alert", epilog="Example: finrl-pod paper alert paper.toml 'the service failed'")
def alert(
    config: Config,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Text of the alert; not needed for a test.")] = "",
    test: Annotated[
        bool, typer.Option("--test", help="Send a test alert to each receiver and show its answer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Send a critical alert to all receivers, without journal or daemon. Exit code 1 if one did not accept it."""
    from finrl_pod.errors import InputError
    from finrl_pod.paper.monitoring.alerts import Alerts, send_test_alert
    from finrl_pod.paper.monitoring.logs import open_log
    from finrl_pod.paper.settings import load

    webhook = load(config).monitoring.webhook
    if test:
        from finrl_pod_app.paper.status_view import show_alert_test

        result = send_test_alert(webhook)
        print_result(result, show_alert_test, as_json=as_json)
        if not all(receiver.delivered for receiver in result.receivers):
            raise typer.Exit(DIFFERS)
        return
    if not message:
        raise InputError("name the text of the alert, or send a test alert with --test")
    alerts = Alerts(webhook, open_log())
    alerts.send("critical", "service", message)
    if not alerts.close(ALERT_SECONDS):
        raise typer.Exit(DIFFERS)


@app.command("backup", epilog="Example: finrl-pod paper backup paper.toml journal-copy.sqlite")
def backup(
    config: Config,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New SQLite file; an existing one is not overwritten.")],
    as_json: Json = False,
) -> None:
    """Copy the journal to a file, also while the daemon runs. To restore it, put the copy in the journal's place."""
    settings, store = _open(config)
    store.back_up(file)
    document = {"journal": settings.journal, "backup": str(file), "bytes": file.stat().st_size}
    print_result(document, f"copied journal {settings.journal} to {file}", as_json=as_json)


@app.command("adopt", epilog="Example: finrl-pod paper adopt paper.toml --yes")
def adopt(
    config: Config = DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", help="Write it to the journal's place; keep what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Rebuild a lost journal from the broker's orders and fills. Without --yes it is shown only."""
    from finrl_pod.paper.settings import load

    settings = load(config)
    from finrl_pod_app.paper.adopted_journal import adopt_journal
    from finrl_pod_app.paper.status_view import show_adoption

    print_result(adopt_journal(settings, write=yes), show_adoption, as_json=as_json)


@app.command("gains", epilog="Example: finrl-pod paper gains paper.toml --out taxes")
def gains(
    config: Config = DEFAULT,
    out: Annotated[Path | None, typer.Option(help="Folder for realised.csv, open_lots.csv and symbols.csv.")] = None,
    as_json: Json = False,
) -> None:
    """Show realised gains, open tax lots and figures by symbol, first in, first out."""
    from finrl_pod.paper.journal.tax_lots import gains_report, write_gains
    from finrl_pod_app.paper.status_view import show_gains

    report = gains_report(_open(config)[1])
    if out is not None:
        write_gains(report, out)
    print_result(report, show_gains, as_json=as_json)


@app.command("replay", epilog="Example: finrl-pod paper replay 2020-01-02 2020-06-30 paper.toml")
def replay(
    start: Annotated[str, typer.Argument(metavar="START", help="First day, e.g. 2020-01-02.")],
    end: Annotated[str, typer.Argument(metavar="END", help="Last day.")],
    config: Config = DEFAULT,
    journal: Annotated[Path | None, typer.Option(help="Journal of the replay; default: a temporary file.")] = None,
    as_json: Json = False,
) -> None:
    """Replay a past period through the daemon and compare it with the backtest. Exit code 1 if they differ."""
    import dataclasses
    import tempfile

    from finrl_pod.data.dates import first_moment
    from finrl_pod.paper.settings import load

    settings = load(config)
    days = (first_moment(start, "START").date(), first_moment(end, "END").date())
    from finrl_pod_app.paper.backtest_difference import run_replay
    from finrl_pod_app.paper.status_view import replay_progress, show_replay

    with tempfile.TemporaryDirectory() as folder, replay_progress(*days, quiet=as_json) as progress:
        report = run_replay(settings, *days, journal or Path(folder) / "replay.sqlite", progress)
    if journal is None:
        report = dataclasses.replace(report, journal=None)
    print_result(report, show_replay, as_json=as_json)
    if not report.same:
        raise typer.Exit(DIFFERS)


@app.command("track", epilog="Example: finrl-pod paper track paper.toml --panel sample")
def track(
    config: Config = DEFAULT,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read journal and settings from this file, not the config.")
    ] = None,
    panel: Annotated[str, typer.Option(help="Stored panel to use; default: the daemon's own data feed.")] = "",
    as_json: Json = False,
) -> None:
    """Compare the account with the backtest that sends the same orders, and attribute the difference to its causes.

    Exit code 1 if more than a thousandth of equity has no known cause.
    """
    import dataclasses

    from finrl_pod.paper.settings import load

    check_exists(config if journal is None else journal, "config" if journal is None else "journal")
    from finrl_pod_app.paper.backtest_difference import compare_journal, recorded_settings
    from finrl_pod_app.paper.status_view import show_track

    settings = (
        load(config) if journal is None else dataclasses.replace(recorded_settings(journal), journal=str(journal))
    )
    report = compare_journal(settings, panel)
    print_result(report, show_track, as_json=as_json)
    if report.alarm:
        raise typer.Exit(DIFFERS)


@app.command("demo", epilog="Example: finrl-pod paper demo --sessions 21")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the champion and the results.")] = Path("runs/paper"),
    start: Annotated[str, typer.Option(metavar="DATE", help="First simulated day.")] = "2019-06-03",
    sessions: Annotated[int, typer.Option(min=3, max=252, help="Number of sessions.")] = 21,
    as_json: Json = False,
) -> None:
    """Trade one simulated month against the fake server: no account, no network, a few minutes."""
    from finrl_pod.data.dates import first_moment
    from finrl_pod_app.paper.demo import run_demo
    from finrl_pod_app.paper.status_view import show_demo

    report = run_demo(out, first_moment(start, "--start").date(), sessions, lambda line: echo(line, err=True))
    print_result(report, show_demo, as_json=as_json)
    if not report.agrees:
        raise typer.Exit(DIFFERS)


def _open(config: Path) -> tuple[PaperConfig, Store]:
    from finrl_pod.paper.journal.row_check import open_checked
    from finrl_pod.paper.settings import load

    settings = load(config)
    return settings, open_checked(Path(settings.journal))


def _submit(config: Path, name: str, wait: float, *, as_json: bool, needs_result: bool = False) -> None:
    """Submit a command and wait for its result; a pending one is executed when the daemon runs next.

    Exits with code 1 if the command was refused, or, with `needs_result`, if there is no result in time.
    """
    import time

    from finrl_pod.paper.journal.commands import CommandName, current_user, read_result, submit_command

    _, store = _open(config)
    number = submit_command(store, CommandName(name), user=current_user())
    end = time.monotonic() + wait
    result = read_result(store, number)
    while result is None and time.monotonic() < end:
        time.sleep(POLL_INTERVAL)
        result = read_result(store, number)
    is_refused = result is not None and result.refused
    document = {"command": name, "number": number, "outcome": result and result.message, "refused": is_refused}
    message = result.message if result else "no result yet; the command is executed as soon as the daemon runs"
    print_result(document, f"{name}: {message}", as_json=as_json)
    if is_refused or (needs_result and result is None):
        raise typer.Exit(DIFFERS)


@app.command("fake-alpaca", epilog="Example: finrl-pod paper fake-alpaca sample --start 2020-01-02 --speed 600")
def fake_alpaca(
    panel: Annotated[str, typer.Argument(metavar="PANEL", help="Name of a stored panel of daily bars.")] = "sample",
    start: Annotated[
        str, typer.Option(help="First simulated day; the clock starts at 8:00 in New York.")
    ] = "2019-01-02",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")] = 8765,
    speed: Annotated[float, typer.Option(min=0, help="Simulated seconds per second; 0 stops the clock.")] = 1.0,
    window_speed: Annotated[
        float | None, typer.Option(min=0, help="Speed around each open and close; default: --speed.")
    ] = None,
    window_minutes: Annotated[
        float, typer.Option(min=0, help="Width of these windows: simulated minutes before and after.")
    ] = 40.0,
    cash: Annotated[float, typer.Option(min=1, help="Cash of the account at the start, in dollars.")] = 100_000.0,
    partial: Annotated[float, typer.Option(min=0, max=1, help="Fraction of orders that fill in two parts.")] = 0.1,
    cost_bps: Annotated[
        float, typer.Option(min=0, help="Fee on each fill in basis points; Alpaca charges none.")
    ] = 0.0,
    fault_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of requests and stream messages hit by random faults.")
    ] = 0.0,
    faults: Annotated[Path | None, typer.Option(help="JSON file with a list of fault rules.")] = None,
    corporate_actions: Annotated[
        Path | None,
        typer.Option("--corporate-actions", "--actions", help="JSON file with a list of splits and dividends."),
    ] = None,
    crypto: Annotated[
        bool, typer.Option("--crypto", help="Trade pairs such as BTC/USD around the clock; needs a bar of every day.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of partial fills and random faults.")] = 0,
    log: Annotated[
        Path | None, typer.Option(help="Append every request and event to this file, as JSON lines.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Keep account, orders and time in this file across restarts.")
    ] = None,
    clock: Annotated[
        Path | None, typer.Option(help="Share the clock with a daemon through this file (broker.clock).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the URLs as one JSON object.")] = False,
) -> None:
    """Serve Alpaca's trading API, market data API and stream from a panel. Any keys are accepted; stop with Ctrl-C."""
    import asyncio
    import signal
    from decimal import Decimal

    from finrl_pod.data.dates import first_moment
    from finrl_pod.data.store import Store
    from finrl_pod.fake_alpaca.faults import Fault, random_faults
    from finrl_pod.fake_alpaca.prices import trading_windows
    from finrl_pod.fake_alpaca.scaled_clock import Pace
    from finrl_pod.fake_alpaca.server import FakeAlpaca
    from finrl_pod.fake_alpaca.settings import CorporateAction, Settings, read_records

    day = first_moment(start, "--start").date()
    settings = Settings(
        cash=Decimal(repr(cash)),
        seed=seed,
        partial=partial,
        cost_bps=Decimal(repr(cost_bps)),
        crypto=crypto,
        actions=tuple(read_records(corporate_actions, CorporateAction)) if corporate_actions else (),
    )
    rules = (*(read_records(faults, Fault) if faults else ()), *(random_faults(fault_rate) if fault_rate else ()))
    server = FakeAlpaca(
        Store().load(panel), settings, start=day, faults=rules, port=port, log=log, state=state, clock=clock
    )
    width = 60.0 * window_minutes
    windows = trading_windows(server.exchange.prices.sessions.all, width, width)
    server.set_pace(Pace(speed if window_speed is None else window_speed, speed, windows))

    def ready() -> None:
        urls = {"url": server.url, "stream": server.stream_url, "clock": str(clock) if clock else None}
        text = f"serving {panel!r} from {server.clock.now():%Y-%m-%d} at {server.url} (stream at /stream)"
        print_result(urls, text, as_json=as_json)

    async def serve() -> None:
        stop = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
        await server.serve(ready, stop)

    asyncio.run(serve())

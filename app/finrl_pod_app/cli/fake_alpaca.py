"""`finrl-pod paper fake-alpaca`: a fake Alpaca server on this machine, to try paper trading without an account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finrl_pod_app.cli.options import print_json

_END_POLL_SECONDS = 0.05


def fake_alpaca(
    panel: Annotated[str, typer.Argument(metavar="PANEL", help="Name of a stored panel of daily bars.")] = "sample",
    start: Annotated[
        str, typer.Option(help="First simulated day; the clock starts at 8:00 in New York.")
    ] = "2019-01-02",
    until: Annotated[str, typer.Option(help="Stop at the end of this day; empty: run until Ctrl-C.")] = "",
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
        bool,
        typer.Option("--crypto", help="Trade pairs such as BTC/USD around the clock; needs a bar of every day."),
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

    from finrl_pod.data.dates import first_moment, last_moment
    from finrl_pod.data.store import Store
    from finrl_pod.fake_alpaca.faults import random_faults, read_faults
    from finrl_pod.fake_alpaca.prices import trading_windows
    from finrl_pod.fake_alpaca.scaled_clock import Pace
    from finrl_pod.fake_alpaca.server import FakeAlpaca
    from finrl_pod.fake_alpaca.settings import Settings, read_actions

    day = first_moment(start, "--start").date()
    end = last_moment(until, "--until").timestamp() if until else float("inf")
    settings = Settings(
        cash=Decimal(repr(cash)),
        seed=seed,
        partial=partial,
        cost_bps=Decimal(repr(cost_bps)),
        crypto=crypto,
        actions=read_actions(corporate_actions) if corporate_actions else (),
    )
    rules = (*(read_faults(faults) if faults else ()), *(random_faults(fault_rate) if fault_rate else ()))
    server = FakeAlpaca(
        Store().load(panel),
        settings,
        start=day,
        faults=rules,
        port=port,
        log=log,
        state=state,
        clock=clock,
    )
    width = 60.0 * window_minutes
    windows = trading_windows(server.exchange.prices.sessions.all, width, width)
    server.set_pace(Pace(speed if window_speed is None else window_speed, speed, windows))

    def ready() -> None:
        urls = {"url": server.url, "stream": server.stream_url, "clock": str(clock) if clock else None}
        if as_json:
            print_json(urls)
        else:
            typer.echo(f"serving {panel!r} from {server.clock.now():%Y-%m-%d} at {server.url} (stream at /stream)")

    async def serve() -> None:
        stop = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)

        async def stop_at_end() -> None:
            while server.clock.seconds() <= end:
                await asyncio.sleep(_END_POLL_SECONDS)
            stop.set()

        watching = asyncio.create_task(stop_at_end())
        await server.serve(ready, stop)
        watching.cancel()

    asyncio.run(serve())

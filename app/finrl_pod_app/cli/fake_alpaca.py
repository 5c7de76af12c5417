"""`finrl-pod paper fake-alpaca`: a stand-in for Alpaca on this machine, to try paper trading without an account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finrl_pod_app.cli.options import print_json


def fake_alpaca(
    panel: Annotated[str, typer.Argument(metavar="PANEL", help="A stored panel of daily bars.")] = "sample",
    start: Annotated[
        str, typer.Option(help="The first simulated day; time begins at 8:00 in New York.")
    ] = "2019-01-02",
    until: Annotated[str, typer.Option(help="Stop at the end of this day; empty: never.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8765,
    speed: Annotated[float, typer.Option(min=0, help="Simulated seconds a second; 0 stands still.")] = 1.0,
    window_speed: Annotated[
        float | None, typer.Option(min=0, help="The same around each opening and close; --speed unless given.")
    ] = None,
    window_minutes: Annotated[float, typer.Option(min=0, help="Simulated minutes before and after these.")] = 40.0,
    busy_speed: Annotated[
        float | None, typer.Option(min=0, help="The most around openings and closes while requests come in.")
    ] = None,
    cash: Annotated[float, typer.Option(min=1, help="What the account starts with.")] = 100_000.0,
    partial: Annotated[float, typer.Option(min=0, max=1, help="Share of orders that fill in two parts.")] = 0.1,
    cost_bps: Annotated[float, typer.Option(min=0, help="A fee on fills, in basis points; Alpaca takes none.")] = 0.0,
    fault_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of requests hit by random faults.")] = 0.0,
    faults: Annotated[Path | None, typer.Option(help="JSON list of scripted faults.")] = None,
    actions: Annotated[Path | None, typer.Option(help="JSON list of splits and dividends.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Append every request and event to this file.")] = None,
    state: Annotated[Path | None, typer.Option(help="Keep account and time in this file over restarts.")] = None,
    clock: Annotated[Path | None, typer.Option(help="Share the clock through this file (broker.clock).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Serve Alpaca's trading, prices and stream on this machine, fed from a panel. Any keys will do. Ctrl-C ends it."""
    import asyncio
    import signal
    from decimal import Decimal

    from finrl_pod.data.dates import first_moment, last_moment
    from finrl_pod.data.store import Store
    from finrl_pod.fake_alpaca.faults import random_faults, read_faults
    from finrl_pod.fake_alpaca.scaled_clock import Pace
    from finrl_pod.fake_alpaca.server import FakeAlpaca
    from finrl_pod.fake_alpaca.sessions import trading_windows
    from finrl_pod.fake_alpaca.settings import Settings, read_actions

    day = first_moment(start, "--start").date()
    end = last_moment(until, "--until").timestamp() if until else float("inf")
    settings = Settings(
        cash=Decimal(repr(cash)),
        seed=seed,
        partial=partial,
        cost_bps=Decimal(repr(cost_bps)),
        actions=read_actions(actions) if actions else (),
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
        busy_speed=busy_speed,
    )
    around = 60.0 * window_minutes
    windows = trading_windows(server.exchange.prices.sessions.all, around, around)
    server.set_pace(Pace(speed if window_speed is None else window_speed, speed, windows))

    def ready() -> None:
        places = {"url": server.url, "stream": server.stream_url, "clock": str(clock) if clock else None}
        if as_json:
            print_json(places)
        else:
            typer.echo(f"serving {panel!r} from {server.clock.now():%Y-%m-%d} at {server.url} (stream at /stream)")

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

        async def watch() -> None:
            while server.clock.seconds() <= end:
                await asyncio.sleep(0.05)
            stop.set()

        watching = asyncio.create_task(watch())
        await server.serve(ready, stop)
        watching.cancel()

    asyncio.run(serve())

"""Crypto pairs around the clock: the real daemon process on the fake server, over a weekend, with kills."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import ConfigError
from finrl_pod.paper.brokers.alpaca.crypto import open_alpaca_crypto
from finrl_pod.paper.brokers.port import Broker, DataFeed
from finrl_pod.paper.records import Confirmed, OrderRequest, Rejected, Side, TimeInForce
from finrl_pod.paper.runtime.clocks import SystemClock
from finrl_pod.paper.runtime.schedule import calendar_of
from finrl_pod.paper.settings import parse
from finrl_pod.types import Panel
from tests.paper.process.harness import KEYS, DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

PAIRS = ["BTC/USD", "ETH/USD", "SOL/USD"]
FRIDAY = date(2024, 3, 1)
DAYS = 4
CONFIG = {
    "": {"symbols": PAIRS},
    "broker": {"kind": "alpaca-crypto", "clock": "clock.json"},
    "orders": {"fractional": True},
    "data": {"window": 10},
}


def panel() -> Panel:
    """A bar of every day, weekends included."""
    days = [date(2024, 2, 1) + timedelta(days=k) for k in range(60)]
    draw = np.random.default_rng(0)
    close = np.round(np.array([60_000.0, 3_000.0, 120.0]) * np.exp(np.cumsum(draw.normal(0, 0.02, (60, 3)), 0)), 2)
    opened = np.round(close * np.exp(draw.normal(0, 0.005, close.shape)), 2)
    columns = {
        "open": opened, "high": np.maximum(opened, close) * 1.01, "low": np.minimum(opened, close) * 0.99,
        "close": close, "volume": np.full(close.shape, 1e6),
    }  # fmt: skip
    return make_panel(np.array(days, "datetime64[ns]"), PAIRS, columns, name="pairs", source="synthetic")


def harness(folder: Any) -> DaemonHarness:
    return DaemonHarness(folder, config=CONFIG, panel=panel(), start=FRIDAY, crypto=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with harness(tmp_path_factory.mktemp("crypto")) as started:
        started.launch()
        started.wait_until_recovered()
        started.run_clock()
        started.run_until(started.days[1].open + 60)
        accepted = started.on_order_event("pending_new", "ETH/USD", started.kill)
        started.wait(accepted.is_set)
        assert started.daemon is not None
        started.daemon.wait()
        started.launch()
        started.wait_until_recovered()
        started.run_until(started.days[DAYS].open + 2 * 3600, started.slow_clock)
        started.code = started.stop()  # type: ignore[attr-defined]
        yield started


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0  # type: ignore[attr-defined]


def test_every_day_is_decided_and_filled_after_midnight_utc(run: DaemonHarness) -> None:
    decided = run.query("select bar, outcome from decisions")
    days = [(FRIDAY + timedelta(days=k)).isoformat() for k in range(DAYS)]
    # The server starts at noon of the first day; Saturday and Sunday are traded too.
    assert decided == [("2024-02-29", "missed"), *((day, "orders") for day in days)]
    for order in run.orders():
        assert order.time_in_force == "gtc"
        assert order.status == "filled"
        at = datetime.fromtimestamp(order.submitted, UTC)
        assert (at.hour, at.minute) < (0, 30)
    held = {symbol.replace("/", "") for symbol in run.exchange.ledger.holdings}
    assert held == {"BTCUSD", "ETHUSD", "SOLUSD"}


def test_daily_bars_are_utc_days(run: DaemonHarness) -> None:
    ((price,),) = run.query("select price from closes where symbol = 'BTC/USD' and session = '2024-03-02' limit 1")
    made = panel()
    row = [str(day) for day in made.times.astype("datetime64[D]")].index("2024-03-02")
    assert float(price) == pytest.approx(float(made.close[row, 0]), rel=1e-9)


def test_broker_satisfies_the_port(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with harness(tmp_path) as served:
        broker, feed = open_alpaca_crypto(SystemClock(), served.server.url, listen=False)
        assert isinstance(broker, Broker)
        assert isinstance(feed, DataFeed)
        assert set(broker.assets(["BTC/USD", "AAPL"])) == {"BTC/USD"}
        assert broker.corporate_actions(PAIRS, FRIDAY, FRIDAY) == ()
        assert broker.clock().is_open
        bought = OrderRequest("one", "ETH/USD", Side.BUY, Decimal("0.5"), TimeInForce.GTC)
        assert isinstance(broker.submit(bought), Confirmed)
        day = OrderRequest("two", "ETH/USD", Side.BUY, Decimal("0.5"), TimeInForce.DAY)
        assert isinstance(broker.submit(day), Rejected)
        served.server.jump(served.server.clock.now() + timedelta(minutes=1))
        (position,) = broker.positions()
        assert (position.symbol, position.quantity) == ("ETH/USD", Decimal("0.5"))
        assert {fill.symbol for fill in broker.fills_since(None).fills} == {"ETH/USD"}
        assert "BTC/USD" in feed.latest(PAIRS)
        broker.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set orders.fractional = true"),
        ({"orders": {"fractional": True}, "slicing": {"schedule": "twap"}}, "once a day"),
    ],
)
def test_settings_that_crypto_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    crypto = {"strategy": "buy_and_hold", "symbols": ["BTC/USD"], "broker": {"kind": "alpaca-crypto"}}
    with pytest.raises(ConfigError, match=message):
        parse({**crypto, **settings})


def test_calendar_never_closes() -> None:
    config = parse({
        "strategy": "buy_and_hold", "symbols": ["BTC/USD"], "broker": {"kind": "alpaca-crypto"},
        "orders": {"fractional": True},
    })  # fmt: skip
    days = calendar_of(config).sessions(date(2024, 3, 2), date(2024, 3, 4))
    assert [day.date.isoformat() for day in days] == ["2024-03-02", "2024-03-03", "2024-03-04"]
    assert all((day.close - day.open) == timedelta(days=1) for day in days)
    cycle = calendar_of(config).next_cycle(datetime(2024, 3, 3, 12, tzinfo=UTC), config)
    assert (cycle.bar, cycle.opens) == (date(2024, 3, 2), datetime(2024, 3, 3, 0, 2, tzinfo=UTC))

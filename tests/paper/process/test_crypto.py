"""Crypto pairs around the clock: the real daemon process on the fake server, over a weekend, with kills."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from finrl_pod_app.paper.backtest_difference import compare_with_backtest
from finrl_pod_strategies import baselines

from finrl_pod.errors import ConfigError
from finrl_pod.paper.brokers.factory import open_broker
from finrl_pod.paper.domain.clocks import SystemClock
from finrl_pod.paper.domain.port import Broker, DataFeed
from finrl_pod.paper.domain.records import Confirmed, OrderRequest, Rejected, Side, TimeInForce
from finrl_pod.paper.domain.schedule import calendar_of
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import BrokerSettings, load, parse
from tests.paper.factories import PAIRS, crypto_prices
from tests.paper.process.daemon_main import RandomWeights
from tests.paper.process.harness import KEYS, DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

FRIDAY = date(2024, 3, 1)
DAYS = 4
FRACTIONS = {"fractional": True}
CONFIG = {
    "": {"symbols": list(PAIRS)},
    "broker": {"kind": "alpaca-crypto", "clock": "clock.json"},
    "orders": FRACTIONS,
    "data": {"window": 10},
}


def harness(folder: Any, **changes: Any) -> DaemonHarness:
    return DaemonHarness(folder, config={**CONFIG, **changes}, panel=crypto_prices(), start=FRIDAY, crypto=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with harness(tmp_path_factory.mktemp("crypto")) as started:
        started.start()
        started.run_until(started.days[1].open + 60)
        started.kill_at_acceptance("ETH/USD")
        started.stop_at(started.days[DAYS].open + 2 * 3600)
        yield started


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0


def test_every_day_is_decided_and_filled_after_midnight_utc(run: DaemonHarness) -> None:
    decided = run.query("select bar, outcome from decisions")
    days = [(FRIDAY + timedelta(days=k)).isoformat() for k in range(DAYS)]
    # The server starts at noon of the first day; Saturday and Sunday are traded too.
    assert decided == [("2024-02-29", "missed"), *((day, "orders") for day in days)]
    for order in run.orders():
        assert order.time_in_force == "gtc"
        assert order.status == "filled"
        at = datetime.fromtimestamp(order.submitted_at, UTC)
        assert (at.hour, at.minute) < (0, 30)
    held = {symbol.replace("/", "") for symbol in run.exchange.ledger.holdings}
    assert held == {"BTCUSD", "ETHUSD", "SOLUSD"}


def test_daily_bars_are_utc_days(run: DaemonHarness) -> None:
    ((price,),) = run.query("select price from closes where symbol = 'BTC/USD' and session = '2024-03-02' limit 1")
    made = crypto_prices()
    row = [str(day) for day in made.times.astype("datetime64[D]")].index("2024-03-02")
    assert float(price) == pytest.approx(float(made.close[row, 0]), rel=1e-9)


def test_difference_from_the_backtest_is_explained(run: DaemonHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(baselines.BASELINES, "random_daily", RandomWeights())
    config = load(run.toml)
    store = Store.open(run.journal)
    try:
        found = compare_with_backtest(config, store, crypto_prices())
    finally:
        store.close()
    assert len(found.sessions) == DAYS
    assert not found.alarm
    assert abs(found.attribution["unexplained"]) < 0.01
    assert found.attribution["limits"] == found.attribution["dividends"] == 0


def test_broker_satisfies_the_port(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with harness(tmp_path) as served:
        broker, feed = open_broker(BrokerSettings("alpaca-crypto", url=served.server.url), SystemClock())
        assert isinstance(broker, Broker)
        assert isinstance(feed, DataFeed)
        assert set(broker.assets(["BTC/USD", "AAPL"])) == {"BTC/USD"}
        assert broker.corporate_actions(PAIRS, FRIDAY, FRIDAY) == ()
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
        ({"orders": FRACTIONS, "intraday": {"minutes": 30}}, "once a day"),
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

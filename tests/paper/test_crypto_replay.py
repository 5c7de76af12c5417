"""Replays of crypto pairs around the clock: the daemon's orders and equity equal those of the backtest."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.clocks import ManualClock
from finrl_pod.paper.domain.records import Confirmed, OrderRequest, OrderStatus, OrderType, Rejected, Side, TimeInForce
from finrl_pod.paper.domain.schedule import CONTINUOUS, Calendar, order_hours
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import BrokerSettings, OrderSettings
from finrl_pod.types import Panel
from tests.paper.factories import PAIRS, FixedSource, RotatingStrategy, config, crypto_prices

FIRST, LAST = date(2024, 3, 1), date(2024, 3, 17)  # weekends included
CRYPTO: dict[str, Any] = {
    "symbols": PAIRS,
    "broker": BrokerSettings(kind="alpaca-crypto", cost_bps=7),
    "orders": OrderSettings(fractional=True, collar=0.2),
}
NARROW = OrderSettings(fractional=True, collar=0.003)  # some orders do not fill


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        config(**CRYPTO),
        config(**{**CRYPTO, "orders": NARROW}),
    ],
    ids=["filled orders", "unfilled limit orders"],
)
def test_replay_and_backtest_agree(tmp_path: Path, settings: Any) -> None:
    panel = crypto_prices()
    replayed = replay(settings, panel, [FixedSource(RotatingStrategy())], FIRST, LAST, tmp_path / "j.sqlite")
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    terms = (days.index(str(FIRST)), days.index(str(LAST)), sizing_rules(settings), settings.capital, "open")
    market = build_market(panel, (), (0, 10))
    tested = backtest_paper(RotatingStrategy(), panel, market, *terms, hours=order_hours(settings))
    store = Store.open(tmp_path / "j.sqlite")
    sent = orders(store)
    store.close()
    filled: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for order in sent:
        filled[order.bar, order.symbol] += order.filled
    assert {order.time_in_force for order in sent} == {"gtc"}
    expected = {(str(o.bar.astype("datetime64[D]")), o.symbol): abs(o.filled) for o in tested.orders}
    assert filled == {key: pytest.approx(shares, abs=Decimal("1e-6")) for key, shares in expected.items()}
    assert [str(day) for day, _ in replayed.equity] == days[terms[0] : terms[1] + 1]
    assert [equity for _, equity in replayed.equity] == pytest.approx(list(tested.equity), abs=Decimal("0.01"))
    assert len(filled) > 30
    if settings.orders is NARROW:
        assert any(order.filled < order.quantity for order in sent)


@pytest.mark.slow
def test_whole_orders_fill_two_minutes_after_midnight(tmp_path: Path) -> None:
    panel = crypto_prices()
    assert panel.open is not None
    settings = config(**CRYPTO)
    replay(settings, panel, [FixedSource(RotatingStrategy())], FIRST, date(2024, 3, 3), tmp_path / "j.sqlite")
    store = Store.open(tmp_path / "j.sqlite")
    first = next(order for order in orders(store) if order.bar == "2024-03-02")
    store.close()
    row, column = list(panel.times).index(np.datetime64("2024-03-03")), PAIRS.index(first.symbol)
    opened, close = panel.open[row, column], panel.close[row, column]
    price = float(first.value) / float(first.filled)
    assert price == pytest.approx(opened + (close - opened) * 2 / 1440, rel=1e-6)


def test_panel_without_weekends_is_refused(tmp_path: Path) -> None:
    made = crypto_prices()
    weekdays = np.is_busday(made.times.astype("datetime64[D]"))
    columns = {name: getattr(made, name)[weekdays] for name in ("open", "high", "low", "close", "volume", "tradable")}
    panel: Panel = dataclasses.replace(made, times=made.times[weekdays], **columns)
    with pytest.raises(InputError, match=r"no bar of 2024-03-02 and 5 other days; crypto needs one of every day"):
        replay(config(**CRYPTO), panel, [FixedSource(RotatingStrategy())], FIRST, LAST, tmp_path / "j.sqlite")


def test_simulated_broker_never_closes() -> None:
    midnight = datetime(2024, 3, 3, tzinfo=UTC)
    clock = ManualClock(midnight - timedelta(hours=1))
    broker = SimulatedBroker(crypto_prices(), clock, Decimal(10_000), calendar=Calendar(CONTINUOUS))
    day = OrderRequest("day", "SOL/USD", Side.BUY, Decimal("0.5"), TimeInForce.DAY)
    assert isinstance(broker.submit(day), Rejected)
    price = broker.latest(PAIRS)["SOL/USD"][0]
    below = OrderRequest(
        "one", "SOL/USD", Side.BUY, Decimal("0.5"), TimeInForce.GTC, OrderType.LIMIT, (price / 2).quantize(Decimal(1))
    )
    market = OrderRequest("two", "ETH/USD", Side.BUY, Decimal("0.5"), TimeInForce.GTC)
    assert isinstance(broker.submit(below), Confirmed)
    assert isinstance(broker.submit(market), Confirmed)
    clock.sleep(3 * 86_400.0)
    (held,) = broker.positions()
    assert (held.symbol, held.quantity) == ("ETH/USD", Decimal("0.5"))
    waiting = broker.order_by_client_id("one")
    assert waiting is not None
    assert waiting.status is OrderStatus.NEW

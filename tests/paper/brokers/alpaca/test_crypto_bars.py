"""Daily bars of crypto pairs, made from hourly bars."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from finrl_pod.paper.brokers.alpaca.credentials import Keys
from finrl_pod.paper.brokers.alpaca.crypto import CryptoAccount, CryptoFeed
from finrl_pod.paper.brokers.alpaca.stream import NoStream
from finrl_pod.paper.brokers.alpaca.transport import RequestContext
from finrl_pod.paper.domain.clocks import ManualClock


class HourlyBars:
    """A client library with two hours of one day; the second hour has quotes and no trades."""

    name = "alpaca-crypto"

    def bars(self, *_: Any) -> dict[str, Any]:
        second = {"t": "2024-01-01T01:00:00Z", "o": 11, "h": 13, "l": 10, "c": 12, "v": 0}
        first = {"t": "2024-01-01T00:00:00Z", "o": 10, "h": 12, "l": 9, "c": 11, "v": 2.5}
        return {"BTC/USD": [second, first]}


def test_an_hour_without_trades_leaves_the_volume_of_the_day() -> None:
    clock = ManualClock(datetime(2024, 1, 3, tzinfo=UTC))
    library: Any = HourlyBars()
    account = CryptoAccount(library, RequestContext(clock), Keys("key", "secret"), NoStream())
    table = CryptoFeed(account, library, clock, "iex").bars(["BTC/USD"], date(2024, 1, 1), date(2024, 1, 1), "all")
    values = [float(getattr(table, name)[0, 0]) for name in ("open", "high", "low", "close", "volume")]
    assert values == [10.0, 13.0, 9.0, 12.0, 2.5]

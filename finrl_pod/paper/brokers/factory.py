"""Opens the broker, the feed and the clock that a config names."""

from __future__ import annotations

from pathlib import Path

from finrl_pod.errors import ConfigError
from finrl_pod.paper.brokers.alpaca.addresses import PAPER, is_loopback, trading_address
from finrl_pod.paper.brokers.port import Broker, Clock, DataFeed
from finrl_pod.paper.runtime.clocks import SystemClock
from finrl_pod.paper.settings import BrokerSettings


def open_clock(settings: BrokerSettings) -> Clock:
    """Real time, or the shared clock of a fake server on this machine.

    Raises ConfigError for a shared clock beside any other broker, InputError where its file holds none.
    """
    if not settings.clock:
        return SystemClock()
    if not is_loopback(trading_address(settings.url or PAPER)):
        raise ConfigError(
            f"broker.clock {settings.clock!r} is the clock of a server on this machine, but broker.url is "
            f"{settings.url or PAPER!r}: name that server, or leave the clock empty"
        )
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient

    return ClockClient(Path(settings.clock))


def open_broker(settings: BrokerSettings, clock: Clock) -> tuple[Broker, DataFeed]:
    """Raises AddressNotAllowed for an address off the allow-list, SetupError without keys or a package."""
    if settings.kind == "simulated":
        raise ConfigError(
            "the simulated broker keeps no account between two starts: use it with `finrl-pod paper replay`, or set "
            'broker.kind = "alpaca"'
        )
    if settings.kind == "alpaca-trade-api":
        from finrl_pod.paper.brokers.alpaca.legacy import open_trade_api

        return open_trade_api(clock, settings.url, settings.data_url, feed=settings.feed)
    from finrl_pod.paper.brokers.alpaca.client import open_alpaca

    return open_alpaca(clock, settings.url, settings.data_url, feed=settings.feed)

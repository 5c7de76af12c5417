"""Opens the broker, data feed and clock that a config selects."""

from __future__ import annotations

from pathlib import Path

from finrl_pod.errors import ConfigError
from finrl_pod.paper.brokers.alpaca.credentials import PAPER_URL, is_loopback, trading_address
from finrl_pod.paper.brokers.port import Broker, Clock, DataFeed
from finrl_pod.paper.runtime.clocks import SystemClock
from finrl_pod.paper.settings import BrokerSettings


def open_clock(settings: BrokerSettings) -> Clock:
    """The system clock, or the shared clock of a fake server on this machine.

    Raises ConfigError for a shared clock with any other broker, InputError if its file is not a clock file.
    """
    if not settings.clock:
        return SystemClock()
    if not is_loopback(trading_address(settings.url or PAPER_URL)):
        raise ConfigError(
            f"broker.clock {settings.clock!r} needs a server on this machine, but broker.url is "
            f"{settings.url or PAPER_URL!r}; set broker.url to that server or leave broker.clock empty"
        )
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient

    return ClockClient(Path(settings.clock))


def open_broker(settings: BrokerSettings, clock: Clock) -> tuple[Broker, DataFeed]:
    """Broker and data feed of a config.

    Raises AddressNotAllowed for an address off the allow-list, SetupError if keys or a package are missing, and
    ConfigError for the simulated broker.
    """
    if settings.kind == "simulated":
        raise ConfigError(
            "the simulated broker does not keep its account between runs; use it with `finrl-pod paper replay`, or set "
            'broker.kind = "alpaca"'
        )
    if settings.kind == "alpaca-trade-api":
        from finrl_pod.paper.brokers.alpaca.legacy import open_trade_api

        return open_trade_api(clock, settings.url, settings.data_url, feed=settings.feed)
    from finrl_pod.paper.brokers.alpaca.client import open_alpaca

    return open_alpaca(clock, settings.url, settings.data_url, feed=settings.feed)

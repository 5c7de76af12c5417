"""Opens the broker, the feed and the clock that a config names."""

from __future__ import annotations

from finrl_pod.errors import ConfigError, EnvironmentLacks
from finrl_pod.paper.broker import Broker, Clock, DataFeed
from finrl_pod.paper.clocks import SystemClock
from finrl_pod.paper.settings import BrokerSettings


def open_clock(settings: BrokerSettings) -> Clock:
    """Real time, or the shared clock of a fake server on this machine."""
    if not settings.clock:
        return SystemClock()
    raise EnvironmentLacks("this version knows no shared clock; leave broker.clock empty")


def open_broker(settings: BrokerSettings, clock: Clock) -> tuple[Broker, DataFeed]:
    """Raises AddressRefused for an address off the allow-list, EnvironmentLacks without keys or a package."""
    if settings.kind == "simulated":
        raise ConfigError(
            "the simulated broker keeps no account between two starts: use it with `finrl-pod paper replay`, or set "
            'broker.kind = "alpaca"'
        )
    raise EnvironmentLacks(f"this version has no broker {settings.kind!r}; {type(clock).__name__} was opened for it")

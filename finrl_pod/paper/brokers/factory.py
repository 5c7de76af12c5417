"""Opens the broker, data feed and clock that a config selects."""

from __future__ import annotations

from pathlib import Path

from finrl_pod.errors import ConfigError, FinrlPodError, InputError
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary
from finrl_pod.paper.brokers.alpaca.credentials import (
    PAPER_URL,
    data_address,
    default_data_url,
    is_loopback,
    keys_from_environment,
    trading_address,
)
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed, FeedName
from finrl_pod.paper.brokers.alpaca.stream import NoStream, UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import RequestContext
from finrl_pod.paper.domain.clocks import SystemClock
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.settings import BROKERS, BrokerSettings
from finrl_pod.user_files import custom_object, error_text

PORT = "finrl_pod.paper.domain.port"


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


def open_broker(settings: BrokerSettings, clock: Clock, *, listen: bool = True) -> tuple[Broker, DataFeed]:
    """Broker and data feed of a config. listen: connect to the stream of order updates.

    A custom broker is called as Name(settings, clock): the result is a broker that is also the data feed, or a pair of
    both. It decides itself which addresses it connects to. Raises AddressNotAllowed for an address off the
    allow-list, SetupError if keys or a package are missing, InputError for a custom broker that cannot be used,
    and ConfigError for the simulated broker.
    """
    if settings.kind not in BROKERS:
        return _own_broker(settings, clock)
    if settings.kind == "simulated":
        raise ConfigError(
            "the simulated broker does not keep its account between runs; use it with `finrl-pod paper replay`, or set "
            'broker.kind = "alpaca"'
        )
    address = (clock, settings.url, settings.data_url)
    if settings.kind == "alpaca-crypto":
        from finrl_pod.paper.brokers.alpaca.crypto import CryptoAccount, CryptoFeed, CryptoLibrary

        return open_alpaca(*address, library=CryptoLibrary, account=CryptoAccount, prices=CryptoFeed, listen=listen)
    return open_alpaca(*address, feed=settings.feed, listen=listen)


def open_alpaca(
    clock: Clock, url: str = "", data_url: str = "", *, library: type[AlpacaPyLibrary] = AlpacaPyLibrary,
    account: type[AlpacaAccount] = AlpacaAccount, prices: type[AlpacaFeed] = AlpacaFeed, feed: FeedName = "iex",
    listen: bool = True,
) -> tuple[AlpacaAccount, AlpacaFeed]:  # fmt: skip
    """Open the paper account of the keys in the environment and its data feed. They share one rate limit.

    url, data_url: base URLs of a server on this machine; empty for Alpaca. library, account, prices: classes for the
    kind of asset. feed: "iex" or "sip". listen: connect to the trade-updates stream.

    Raises AddressNotAllowed for an address off the allow-list, before the keys are read, and SetupError if keys or
    the library are missing.
    """
    trading_base = trading_address(url or PAPER_URL)
    data_base = data_address(data_url or default_data_url(url))
    keys = keys_from_environment()
    context = RequestContext(clock)
    client = library(trading_base, data_base, keys, context)
    stream = UpdateStream(trading_base, keys, clock).start() if listen else NoStream()
    opened_account = account(client, context, keys, stream)
    return opened_account, prices(opened_account, client, clock, feed)


def _own_broker(settings: BrokerSettings, clock: Clock) -> tuple[Broker, DataFeed]:
    name = settings.kind
    make = custom_object(name, f"the broker {name}")
    if not callable(make):
        raise InputError(f"the broker {name} must be a class or a function of (settings, clock)")
    try:
        result = make(settings, clock)
    except FinrlPodError:
        raise
    except Exception as error:
        raise InputError(f"the broker {name} could not be created: {error_text(error)}") from error
    broker, feed = result if isinstance(result, tuple) and len(result) == 2 else (result, result)
    for target, protocol in ((broker, Broker), (feed, DataFeed)):
        if missing := missing_members(target, protocol):
            raise InputError(f"the broker {name} has no {', '.join(missing)}: see {protocol.__name__} in {PORT}")
    return broker, feed


def missing_members(target: object, protocol: type) -> list[str]:
    """Names of `Broker` or `DataFeed` that an object or a class lacks; a class may set `name` in its constructor."""
    names = sorted(set(dir(protocol)) - set(dir(object)) | set(protocol.__annotations__))
    return [
        name
        for name in names
        if not name.startswith("_") and not hasattr(target, name) and not (name == "name" and isinstance(target, type))
    ]

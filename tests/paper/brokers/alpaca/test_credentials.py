"""API keys, and the allow-list of addresses: look-alikes are refused."""

from __future__ import annotations

import pytest

from finrl_pod.errors import AddressNotAllowed, SetupError
from finrl_pod.paper.brokers.alpaca.credentials import (
    Keys,
    data_address,
    is_loopback,
    keys_from_environment,
    stream_address,
    trading_address,
    within,
)
from finrl_pod.paper.brokers.factory import open_alpaca
from finrl_pod.paper.domain.clocks import SystemClock

REFUSED_URLS = (
    "https://api.alpaca.markets",
    "http://paper-api.alpaca.markets",
    "https://paper-api.alpaca.markets.example.com",
    "https://example.com/paper-api.alpaca.markets",
    "https://paper-api.alpaca.markets@example.com",
    "https://example.com@paper-api.alpaca.markets",
    "https://user:password@127.0.0.1:8000",
    "https://paper-api.alpaca.markets:8443",
    "https://paper-api.alpaca.markets/v2",
    "https://paper-api.alpaca.markets?x=1",
    "https://paper-api.alpaca.markets#@example.com",
    "https://paper-api.alpaca.markets.",
    "https://paper-api.alpaca.markets\\.example.com",
    "https://paper-api.alpaca.markets\t",
    "https://paper-api。alpaca.markets",
    "https://pаper-api.alpaca.markets",
    "https://xn--paper-api.alpaca.markets",
    "//paper-api.alpaca.markets",
    "paper-api.alpaca.markets",
    "ftp://127.0.0.1",
    "http://127.0.0.1.example.com",
    "http://localhost.example.com",
    "http://2130706433",
    "http://127.1",
    "http://[::ffff:127.0.0.1]",
    "http://0.0.0.0:8000",
    "http://192.168.1.5:8000",
    "http://127.0.0.1:port",
    "http://[::1",
    "",
)


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_other_addresses_are_refused_before_keys_are_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APCA_API_KEY_ID", raising=False)
    with pytest.raises(AddressNotAllowed, match="not allowed"):
        trading_address(url)
    with pytest.raises(AddressNotAllowed):
        data_address(url)
    if url:
        # No keys are set: a SetupError would show that they were read first.
        with pytest.raises(AddressNotAllowed):
            open_alpaca(SystemClock(), url)


@pytest.mark.parametrize("url", ["https://data.alpaca.markets", "https://broker-api.alpaca.markets"])
def test_orders_do_not_go_to_the_data_host(url: str) -> None:
    with pytest.raises(AddressNotAllowed):
        trading_address(url)


def test_message_hides_user_name_and_password() -> None:
    with pytest.raises(AddressNotAllowed) as caught:
        trading_address("https://me:hunter2@example.com")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base", "stream"),
    [
        (
            "https://paper-api.alpaca.markets",
            "https://paper-api.alpaca.markets",
            "wss://paper-api.alpaca.markets/stream",
        ),
        (
            "HTTPS://PAPER-API.alpaca.markets:443/",
            "https://paper-api.alpaca.markets",
            "wss://paper-api.alpaca.markets/stream",
        ),
        ("http://127.0.0.1:8123/", "http://127.0.0.1:8123", "ws://127.0.0.1:8123/stream"),
        ("http://localhost:8123", "http://localhost:8123", "ws://localhost:8123/stream"),
        ("http://[::1]:8123", "http://[::1]:8123", "ws://[::1]:8123/stream"),
    ],
)
def test_allowed_addresses(url: str, base: str, stream: str) -> None:
    assert trading_address(url) == base
    assert stream_address(url) == stream
    assert is_loopback(base) == ("alpaca" not in base)
    assert within(base + "/v2/orders?limit=1", base)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v2", "https://127.0.0.1:8123/v2", "http://127.0.0.1:8123@example.com/"]
)
def test_requests_must_stay_under_their_base(url: str) -> None:
    assert not within(url, "http://127.0.0.1:8123")


def test_keys_come_from_the_environment_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKABC")
    monkeypatch.setenv("APCA_API_SECRET_KEY", " ")
    with pytest.raises(SetupError, match="APCA_API_SECRET_KEY not set"):
        keys_from_environment()
    monkeypatch.setenv("APCA_API_SECRET_KEY", "hush")
    keys = keys_from_environment()
    assert (keys.key, keys.secret) == ("PKABC", "hush")
    assert "PKABC" not in repr(keys)
    assert "hush" not in f"{keys}"
    assert Keys("a1", "b2").mask("a1 and b2") == "*** and ***"


@pytest.mark.parametrize("inside", ["\n", "\r", " ", "\t", "\x1b", "\x7f", "\xa0", "é", "\udcff"])
@pytest.mark.parametrize("name", ["APCA_API_KEY_ID", "APCA_API_SECRET_KEY"])
def test_keys_that_no_header_can_carry_are_refused_unseen(
    monkeypatch: pytest.MonkeyPatch, name: str, inside: str
) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKABC")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "hush")
    monkeypatch.setenv(name, f"SuperSecretValue{inside}abcdefg\n")
    with pytest.raises(SetupError, match=name) as refused:
        keys_from_environment()
    assert not {part for part in ("SuperSecretValue", "abcdefg") if part in str(refused.value)}
    assert "\n" not in str(refused.value)

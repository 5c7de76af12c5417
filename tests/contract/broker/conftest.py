"""Fixtures of the broker contract: a setup for each kind of broker, with API keys in the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.broker_setups import BROKER_KINDS, BrokerSetup, HttpSetup, broker_setup


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTESTKEY123")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "s3cr3t/of+test")


@pytest.fixture
def open_setup() -> Iterator[Callable[..., Any]]:
    """Function that opens a setup of a kind; all are closed after the test."""
    with ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(broker_setup(kind, **options))


@pytest.fixture(params=BROKER_KINDS)
def setup(request: pytest.FixtureRequest, open_setup: Callable[..., Any]) -> BrokerSetup:
    return open_setup(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def http(open_setup: Callable[..., Any]) -> HttpSetup:
    return open_setup("alpaca")  # type: ignore[no-any-return]

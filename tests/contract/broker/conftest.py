"""A world for each broker: its account, its prices and its time. Keys are in the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.broker_worlds import KINDS, OVER_HTTP, HttpWorld, World, world


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTESTKEY123")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "s3cr3t/of+test")


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(world(kind, **options))


@pytest.fixture(params=KINDS)
def here(request: pytest.FixtureRequest, make: Callable[..., Any]) -> World:
    return make(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=OVER_HTTP)
def http(request: pytest.FixtureRequest, make: Callable[..., Any]) -> HttpWorld:
    return make(request.param)  # type: ignore[no-any-return]

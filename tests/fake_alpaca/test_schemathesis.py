"""Requests that schemathesis generates from Alpaca's OpenAPI files: no status 5xx, and successes as documented.

Skipped without schemathesis. The files document few refusals: 400, 403, 404, 405 and 422 may be answered where only
200 is documented, and 401 nowhere, since every request has keys here. A fake server serves a part of the API: SERVED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from finrl_pod.fake_alpaca.settings import Settings
from tests.fake_alpaca.openapi import document
from tests.fake_alpaca.server_fixtures import Client, new_york, running_server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

SERVED = (
    *("/v2/account", "/v2/assets", "/v2/calendar", "/v2/clock", "/v2/orders", "/v2/positions"),
    *("/v2/stocks/bars", "/v2/stocks/trades/latest", "/v2/stocks/quotes/latest", "/v1/corporate-actions"),
)
NOT_SERVED = ("exercise", "/bars/latest")
REFUSALS = {400, 403, 404, 405, 422}
EXAMPLES = 25
KEYS = {"APCA-API-KEY-ID": "key", "APCA-API-SECRET-KEY": "secret"}


@pytest.fixture(scope="module")
def active_account() -> Iterator[Client]:
    """An account with an open order and a filled one, without a rate limit."""
    with running_server(Settings(rate_limit=10**9)) as client:
        client.buy(qty="20")
        client.server.jump(new_york("2024-03-01 12:00"))
        client.buy(type="limit", limit_price="5", time_in_force="gtc")
        yield client


def operations(name: str) -> list[Any]:
    """The operations of a file that the fake server has."""
    whole = document(name)
    paths = {
        path: methods
        for path, methods in whole["paths"].items()
        if path.startswith(SERVED) and not any(part in path for part in NOT_SERVED)
    }
    schema = schemathesis.openapi.from_dict({**whole, "paths": paths})
    return [operation.ok() for operation in schema.get_all_operations()]


def partly_refused(response: Any) -> bool:
    """Whether a response for several orders has an error of one, where the files document orders only."""
    return response.status_code == 207 and any(entry["status"] != 200 for entry in response.json())


def check_operation(operation: Any, url: str, statuses: Counter[int]) -> None:
    """Send generated requests and count their statuses."""
    from hypothesis import HealthCheck, Phase, given, settings

    documented = {int(status) for status in operation.definition.raw["responses"]}
    limits = settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @limits
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        response = case.call(base_url=url, headers={**(case.headers or {}), **KEYS})
        statuses[response.status_code] += 1
        assert response.status_code in documented | REFUSALS, f"{operation.label}: {response.text}"
        assert response.status_code < 500, f"{operation.label}: {response.text}"
        if response.status_code < 300 and not partly_refused(response):
            operation.validate_response(response)

    check()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("trading", 15), ("market-data", 4)])
def test_generated_requests_are_answered_as_documented(active_account: Client, name: str, count: int) -> None:
    statuses: Counter[int] = Counter()
    found = operations(name)
    assert len(found) >= count
    for operation in found:
        check_operation(operation, active_account.server.url, statuses)
    assert statuses[200] > 3 * count
    assert sum(statuses[refused] for refused in REFUSALS) > 3 * count

"""Fault rules: which requests they hit, and what the client receives."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.faults import Fault, Faults, random_faults
from tests.fake_alpaca.server_fixtures import Client

ORDER = {"symbol": "AAA", "qty": "1", "side": "buy", "type": "market", "time_in_force": "day"}


def orders(client: Client) -> list[Any]:
    return client("GET", "/v2/orders", params={"status": "all"})  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "accepted"), [("answer", 0), ("answer_after", 1)])
def test_server_error_before_and_after_the_order_is_accepted(client: Client, kind: str, accepted: int) -> None:
    client("POST", "/fake/faults", json={"kind": kind, "method": "POST", "path": "/v2/orders", "status": 504})
    assert client.raw("POST", "/v2/orders", json=ORDER).status_code == 504
    assert len(orders(client)) == accepted
    client("POST", "/v2/orders", json=ORDER)
    assert len(orders(client)) == accepted + 1


@pytest.mark.parametrize(("kind", "accepted"), [("drop", 0), ("drop_after", 1)])
def test_broken_connection_before_and_after_the_order_is_accepted(client: Client, kind: str, accepted: int) -> None:
    client.server.faults.add([Fault(kind, method="POST")])
    with pytest.raises(requests.ConnectionError):
        client.raw("POST", "/v2/orders", json=ORDER)
    assert len(orders(client)) == accepted


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "accepted"), [("hang", 0), ("hang_after", 1)])
def test_hanging_connection_before_and_after_the_order_is_accepted(client: Client, kind: str, accepted: int) -> None:
    client.server.faults.add([Fault(kind, method="POST", seconds=5.0)])
    with pytest.raises(requests.Timeout):
        requests.post(
            client.server.url + "/v2/orders",
            json=ORDER,
            headers={"APCA-API-KEY-ID": "k", "APCA-API-SECRET-KEY": "s"},
            timeout=0.2,
        )
    assert len(orders(client)) == accepted


@pytest.mark.slow
def test_a_response_can_arrive_byte_by_byte(client: Client) -> None:
    """Timeouts between two bytes do not end it: the bytes follow each other too quickly."""
    client.server.faults.add([Fault("drip_after", method="POST", seconds=0.6)])
    got = []
    with (
        pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
        requests.post(
            client.server.url + "/v2/orders",
            json=ORDER,
            headers={"APCA-API-KEY-ID": "k", "APCA-API-SECRET-KEY": "s"},
            timeout=0.3,
            stream=True,
        ) as response,
    ):
        got += list(response.iter_content(1))
    assert response.headers["Content-Length"] == "100000"
    assert len(orders(client)) == 1


def test_responses_can_be_edited_or_replaced_by_html(client: Client) -> None:
    client.server.faults.add(
        [
            Fault("edit", path="/v2/account$", body={"status": "NEW_WORD", "cash": None, "new_field": 1}),
            Fault("answer", path="/v2/clock", status=200, body="<html>", headers={"Content-Type": "text/html"}),
        ]
    )
    account = client("GET", "/v2/account")
    assert (account["status"], account["new_field"], "cash" in account) == ("NEW_WORD", 1, False)
    assert client.raw("GET", "/v2/clock").text == "<html>"
    assert client("GET", "/v2/clock")["is_open"] is False


def test_faults_are_selected_by_symbol_count_and_probability() -> None:
    faults = Faults([Fault("drop", method="POST", symbol="AAA", skip=1, times=2)])
    hits = [
        faults.for_request("POST", "/v2/orders", {"symbol": s}) is not None for s in ("BBB", "AAA", "AAA", "AAA", "AAA")
    ]
    assert hits == [False, False, True, True, False]
    assert faults.waiting == []
    same_and_other_seed = [Faults([Fault("drop", times=0, probability=0.3)], seed) for seed in (1, 1, 2)]
    runs = [[f.for_request("GET", "/v2/clock", {}) is not None for _ in range(500)] for f in same_and_other_seed]
    assert runs[0] == runs[1] != runs[2]
    assert 100 < sum(runs[0]) < 200
    randomly = Faults(random_faults(0.09), seed=5)
    assert 50 < sum(randomly.for_request("GET", "/v2/orders", {}) is not None for _ in range(1000)) < 140


@pytest.mark.parametrize("rule", [{"kind": "explode"}, {"kind": "drop", "often": 1}, {"kind": "drop", "path": "("}, []])
def test_invalid_fault_rules_are_rejected(client: Client, rule: Any) -> None:
    with pytest.raises(InputError):
        Fault.from_json(rule)
    assert client("POST", "/fake/faults", 400, json=[rule])["message"]

"""Faults on purpose, the limit of requests, the log, and what survives a restart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.faults import Fault, Faults, random_faults
from finrl_pod.fake_alpaca.scaled_clock import ClockClient, Pace
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.types import Panel
from tests.fake_alpaca.serving import Client, Start, a_panel, new_york

ORDER = {"symbol": "AAA", "qty": "1", "side": "buy", "type": "market", "time_in_force": "day"}


def orders(client: Client) -> list[Any]:
    return client("GET", "/v2/orders", params={"status": "all"})  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "made"), [("answer", 0), ("answer_after", 1)])
def test_a_server_error_before_and_after_the_order_was_taken(client: Client, kind: str, made: int) -> None:
    client("POST", "/fake/faults", json={"kind": kind, "method": "POST", "path": "/v2/orders", "status": 504})
    assert client.raw("POST", "/v2/orders", json=ORDER).status_code == 504
    assert len(orders(client)) == made
    client("POST", "/v2/orders", json=ORDER)
    assert len(orders(client)) == made + 1


@pytest.mark.parametrize(("kind", "made"), [("drop", 0), ("drop_after", 1)])
def test_a_broken_connection_before_and_after_the_order_was_taken(client: Client, kind: str, made: int) -> None:
    client.server.faults.add([Fault(kind, method="POST")])
    with pytest.raises(requests.ConnectionError):
        client.raw("POST", "/v2/orders", json=ORDER)
    assert len(orders(client)) == made


@pytest.mark.parametrize(("kind", "made"), [("hang", 0), ("hang_after", 1)])
def test_silence_before_and_after_the_order_was_taken(client: Client, kind: str, made: int) -> None:
    client.server.faults.add([Fault(kind, method="POST", seconds=5.0)])
    with pytest.raises(requests.Timeout):
        requests.post(
            client.server.url + "/v2/orders",
            json=ORDER,
            headers={"APCA-API-KEY-ID": "k", "APCA-API-SECRET-KEY": "s"},
            timeout=0.2,
        )
    assert len(orders(client)) == made


def test_answers_can_be_edited_and_be_no_json(client: Client) -> None:
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


def test_faults_are_chosen_by_symbol_count_and_chance() -> None:
    faults = Faults([Fault("drop", method="POST", symbol="AAA", skip=1, times=2)])
    hits = [
        faults.for_request("POST", "/v2/orders", {"symbol": s}) is not None for s in ("BBB", "AAA", "AAA", "AAA", "AAA")
    ]
    assert hits == [False, False, True, True, False]
    assert faults.waiting == []
    many = [Faults([Fault("drop", times=0, probability=0.3)], seed) for seed in (1, 1, 2)]
    runs = [[f.for_request("GET", "/v2/clock", {}) is not None for _ in range(500)] for f in many]
    assert runs[0] == runs[1] != runs[2]
    assert 100 < sum(runs[0]) < 200
    rate = Faults(random_faults(0.09), seed=5)
    assert 50 < sum(rate.for_request("GET", "/v2/orders", {}) is not None for _ in range(1000)) < 140


@pytest.mark.parametrize("rule", [{"kind": "explode"}, {"kind": "drop", "often": 1}, {"kind": "drop", "path": "("}, []])
def test_a_fault_that_makes_no_sense_is_refused(client: Client, rule: Any) -> None:
    with pytest.raises(InputError):
        Fault.from_json(rule)
    assert client("POST", "/fake/faults", 400, json=[rule])["message"]


def test_requests_are_limited_in_any_minute(start: Start) -> None:
    client = start(Settings(rate_limit=5))
    remaining = [client.raw("GET", "/v2/clock").headers["X-RateLimit-Remaining"] for _ in range(5)]
    assert remaining == ["4", "3", "2", "1", "0"]
    refused = client.raw("GET", "/v2/clock")
    assert (refused.status_code, refused.json()) == (429, {"message": "rate limit exceeded"})
    assert int(refused.headers["X-RateLimit-Reset"]) == int(new_york("2024-03-01 08:01").timestamp())
    client.server.jump(new_york("2024-03-01 08:01"))
    assert client.raw("GET", "/v2/clock").status_code == 200


def test_keys_are_needed_and_never_logged(start: Start, tmp_path: Path) -> None:
    client = start(Settings(key="PKABC", secret="s3cret-value"), log=tmp_path / "log.jsonl")
    headers = {"APCA-API-KEY-ID": "PKABC", "APCA-API-SECRET-KEY": "s3cret-value"}
    assert client("GET", "/v2/account", 401) == {"message": "unauthorized."}
    assert client("GET", "/v2/account", headers=headers)["currency"] == "USD"
    text = (tmp_path / "log.jsonl").read_text()
    assert "s3cret-value" not in text
    assert "PKABC" not in text


def test_the_log_holds_every_request_and_event(start: Start, tmp_path: Path) -> None:
    client = start(log=tmp_path / "log.jsonl")
    order = client.buy(time_in_force="opg", client_order_id="mine")
    client.server.jump(new_york("2024-03-01 10:00"))
    client.order(order)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records == client("GET", "/fake/log")[: len(records)]
    assert [r["n"] for r in records] == list(range(len(records)))
    posted = next(r for r in records if r.get("method") == "POST" and r["path"] == "/v2/orders")
    assert (posted["status"], posted["body"]["client_order_id"], posted["counted"]) == (200, "mine", True)
    events = [r["event"] for r in records if r["kind"] == "order"]
    assert events == ["pending_new", "new", "fill"]


def test_an_order_of_somebody_else_and_a_reset(client: Client) -> None:
    client("POST", "/fake/orders", json={**ORDER, "qty": "3"})
    client.server.jump(new_york("2024-03-01 10:00"))
    assert client("GET", "/v2/positions/AAA")["qty"] == "3"
    number = client("GET", "/v2/account")["account_number"]
    client("POST", "/fake/reset", json={"cash": "5000"})
    account = client("GET", "/v2/account")
    assert (account["cash"], client("GET", "/v2/positions")) == ("5000", [])
    assert account["account_number"] != number


def test_the_state_survives_a_restart(start: Start, tmp_path: Path, panel: Panel) -> None:
    state = tmp_path / "state.json"
    first = start(state=state)
    first.buy(time_in_force="opg", qty="7")
    waiting = first.buy(symbol="BBB", type="limit", limit_price="5", time_in_force="gtc", client_order_id="w")
    first.server.jump(new_york("2024-03-01 12:00"))
    before = {
        p: first("GET", p) for p in ("/v2/account", "/v2/positions", "/v2/orders?status=all", "/v2/account/activities")
    }
    first.server.__exit__()
    second = start(state=state)
    assert second("GET", "/v2/clock")["timestamp"][:16] == "2024-03-01T17:00"
    assert {p: second("GET", p) for p in before} == before
    assert second.buy(client_order_id="w", status=422)["message"] == "client_order_id must be unique"
    second("DELETE", f"/v2/orders/{waiting['id']}", 204)
    with pytest.raises(InputError, match="another panel"):
        start(state=state, panel=a_panel(seed=9))


def test_another_process_follows_the_clock(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    with pytest.raises(InputError, match="holds no clock"):
        ClockClient(path)
    client = start(clock=path, pace=Pace(1000.0, 1000.0))
    clock = ClockClient(path)
    begin = clock.now()
    clock.sleep(200.0)
    assert (clock.now() - begin).total_seconds() >= 200.0
    assert abs(client.server.clock.seconds() - clock.seconds()) < 20.0
    client.server.jump(new_york("2024-03-04 10:00"))
    assert clock.now() >= new_york("2024-03-04 10:00")
    assert clock.real_seconds(1.0) == 0.005


def test_time_runs_slowly_in_its_windows() -> None:
    pace = Pace(slow=10.0, fast=1000.0, windows=((5000.0, 5100.0),))
    assert pace.real_between(0.0, 10_000.0) == pytest.approx(5.0 + 10.0 + 4.9)
    assert pace.advance(0.0, 5.0) == pytest.approx(5000.0)
    assert pace.advance(0.0, 6.0) == pytest.approx(5010.0)
    assert pace.advance(4000.0, pace.real_between(4000.0, 7321.0)) == pytest.approx(7321.0)
    assert Pace(0.0, 0.0).real_between(0.0, 1.0) == float("inf")
    with pytest.raises(InputError, match="windows"):
        Pace(windows=((5.0, 7.0), (6.0, 9.0)))


def test_fast_time_brings_the_fills_by_itself(start: Start) -> None:
    client = start(pace=Pace(20_000.0, 20_000.0))
    order = client.buy(time_in_force="opg")
    end = time.monotonic() + 5.0
    while client.order(order)["status"] != "filled" and time.monotonic() < end:
        time.sleep(0.02)
    assert client.order(order)["filled_at"] == "2024-03-01T14:30:00.000000Z"


def test_time_slows_down_while_somebody_asks(start: Start) -> None:
    opening = new_york("2024-03-01 09:30").timestamp()
    pace = Pace(slow=2000.0, fast=2000.0, windows=((opening - 86_400, opening + 86_400),))
    client = start(pace=pace, busy_speed=10.0)
    client("GET", "/v2/clock")
    begin, real = client.server.clock.seconds(), time.monotonic()
    for _ in range(20):
        client("GET", "/v2/clock")
    asked, lasted = client.server.clock.seconds() - begin, time.monotonic() - real
    time.sleep(0.2)
    assert client.server.clock.pace == pace
    # Twice ten simulated seconds a second: a pause between two requests may have been long enough to speed up again.
    assert asked < 0.5 * 2000.0 * lasted


def test_the_port_must_be_free(start: Start) -> None:
    from finrl_pod.errors import SetupError

    taken = int(start().server.url.rsplit(":", 1)[1])
    with pytest.raises(SetupError, match="port"):
        start(port=taken)

"""The server as a whole: rate limit, keys, log, control API, state file and port."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finrl_pod.errors import InputError, SetupError
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.types import Panel
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york, small_panel


def test_requests_are_limited_in_any_60_seconds(start_server: StartServer) -> None:
    client = start_server(Settings(rate_limit=5))
    remaining = [client.raw("GET", "/v2/clock").headers["X-RateLimit-Remaining"] for _ in range(5)]
    assert remaining == ["4", "3", "2", "1", "0"]
    refused = client.raw("GET", "/v2/clock")
    assert (refused.status_code, refused.json()) == (429, {"message": "rate limit exceeded"})
    assert int(refused.headers["X-RateLimit-Reset"]) == int(new_york("2024-03-01 08:01").timestamp())
    client.server.jump(new_york("2024-03-01 08:01"))
    assert client.raw("GET", "/v2/clock").status_code == 200


def test_keys_are_required_and_never_logged(start_server: StartServer, tmp_path: Path) -> None:
    client = start_server(Settings(key="PKABC", secret="s3cret-value"), log=tmp_path / "log.jsonl")
    headers = {"APCA-API-KEY-ID": "PKABC", "APCA-API-SECRET-KEY": "s3cret-value"}
    assert client("GET", "/v2/account", 401) == {"message": "unauthorized."}
    assert client("GET", "/v2/account", headers=headers)["currency"] == "USD"
    text = (tmp_path / "log.jsonl").read_text()
    assert "s3cret-value" not in text
    assert "PKABC" not in text


def test_log_records_every_request_and_event(start_server: StartServer, tmp_path: Path) -> None:
    client = start_server(log=tmp_path / "log.jsonl")
    order = client.buy(time_in_force="opg", client_order_id="mine")
    client.server.jump(new_york("2024-03-01 10:00"))
    client.order(order)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records == json.loads(json.dumps(client.server.log.records[: len(records)]))
    assert [r["n"] for r in records] == list(range(len(records)))
    posted = next(r for r in records if r.get("method") == "POST" and r["path"] == "/v2/orders")
    assert (posted["status"], posted["body"]["client_order_id"], posted["counted"]) == (200, "mine", True)
    events = [r["event"] for r in records if r["kind"] == "order"]
    assert events == ["pending_new", "new", "fill"]


def test_control_api_submits_external_orders_and_resets_the_account(client: Client) -> None:
    client(
        "POST",
        "/fake/orders",
        json={"symbol": "AAA", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"},
    )
    client.server.jump(new_york("2024-03-01 10:00"))
    assert client("GET", "/v2/positions/AAA")["qty"] == "3"
    number = client("GET", "/v2/account")["account_number"]
    client("POST", "/fake/reset", json={"cash": "5000"})
    account = client("GET", "/v2/account")
    assert (account["cash"], client("GET", "/v2/positions")) == ("5000", [])
    assert account["account_number"] != number


def test_state_survives_a_restart(start_server: StartServer, tmp_path: Path, panel: Panel) -> None:
    state = tmp_path / "state.json"
    first = start_server(state=state)
    first.buy(time_in_force="opg", qty="7")
    waiting = first.buy(symbol="BBB", type="limit", limit_price="5", time_in_force="gtc", client_order_id="w")
    first.server.jump(new_york("2024-03-01 12:00"))
    before = {
        p: first("GET", p) for p in ("/v2/account", "/v2/positions", "/v2/orders?status=all", "/v2/account/activities")
    }
    first.server.__exit__()
    second = start_server(state=state)
    assert second("GET", "/v2/clock")["timestamp"][:16] == "2024-03-01T17:00"
    assert {p: second("GET", p) for p in before} == before
    assert second.buy(client_order_id="w", status=422)["message"] == "client_order_id must be unique"
    second("DELETE", f"/v2/orders/{waiting['id']}", 204)
    with pytest.raises(InputError, match="another panel"):
        start_server(state=state, panel=small_panel(seed=9))


def test_port_in_use_is_an_error(start_server: StartServer) -> None:
    used_port = int(start_server().server.url.rsplit(":", 1)[1])
    with pytest.raises(SetupError, match="port"):
        start_server(port=used_port)

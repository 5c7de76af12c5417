"""Transport and stream: no redirects, proxies, other hosts or methods, no retries, and bounded responses."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from finrl_pod.errors import AddressNotAllowed, BrokerUnavailable
from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.fake_alpaca.scaled_clock import ClockClient, Pace
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.paper.brokers.alpaca.credentials import Keys
from finrl_pod.paper.brokers.alpaca.stream import UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import RequestContext, bounded_session
from finrl_pod.paper.brokers.factory import open_alpaca
from finrl_pod.paper.domain.clocks import SystemClock
from tests.contract.broker_setups import ShortTimeoutClock
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLOCK = ShortTimeoutClock(SystemClock())


class BriefClock(ShortTimeoutClock):
    """Time limits of at most half a second of real time."""

    def real_seconds(self, seconds: float) -> float:
        return min(super().real_seconds(seconds), 0.5)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTESTKEY123")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "s3cr3t")


def base(server: HTTPServer) -> str:
    return server.url_for("").rstrip("/")


def test_redirect_is_not_followed(httpserver: HTTPServer) -> None:
    received: list[Request] = []

    def answer(request: Request) -> Response:
        received.append(request)
        return Response(status=302, headers={"Location": "/v2/elsewhere"})

    httpserver.expect_request("/v2/account").respond_with_handler(answer)
    broker, _ = open_alpaca(SystemClock(), base(httpserver), listen=False)
    with pytest.raises(BrokerUnavailable, match="redirect"):
        broker.account()
    assert len(received) == 1


def test_limit_of_time_is_two_real_seconds_at_any_speed_of_the_clock(httpserver: HTTPServer) -> None:
    """The answer takes three minutes of a clock that runs at 600 simulated seconds per second."""

    class FastClock(SystemClock):
        def real_seconds(self, seconds: float) -> float:
            return seconds / 600

    def answer(_: Request) -> Response:
        time.sleep(0.3)
        return Response(json.dumps({"timestamp": "2024-03-01T10:00:00Z"}))

    httpserver.expect_request("/v2/clock").respond_with_handler(answer)
    broker, _ = open_alpaca(FastClock(), base(httpserver), listen=False)
    assert broker.clock() == datetime(2024, 3, 1, 10, tzinfo=UTC)


def test_proxies_of_the_environment_are_not_used(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    httpserver.expect_request("/v2/clock").respond_with_json({"timestamp": "2024-03-01T13:00:00Z"})
    broker, _ = open_alpaca(SystemClock(), base(httpserver), listen=False)
    assert broker.clock() == datetime(2024, 3, 1, 13, tzinfo=UTC)


def test_data_host_accepts_get_only(httpserver: HTTPServer) -> None:
    session = bounded_session(RequestContext(CLOCK), base(httpserver), ("GET",))
    for method in ("POST", "DELETE", "PATCH"):
        with pytest.raises(AddressNotAllowed, match="only GET"):
            session.request(method, base(httpserver) + "/v2/orders")
    with pytest.raises(AddressNotAllowed):
        session.get("http://127.0.0.1:9/v2/orders")
    assert httpserver.log == []


@pytest.mark.slow
def test_endless_response_is_abandoned(httpserver: HTTPServer) -> None:
    """Each chunk arrives in time: the time of the whole response is limited."""

    def drip() -> Iterator[bytes]:
        for _ in range(200):
            time.sleep(0.05)
            yield b" " * 70_000

    httpserver.expect_request("/v2/account").respond_with_handler(lambda _: Response(drip()))
    broker, _ = open_alpaca(BriefClock(SystemClock()), base(httpserver), listen=False)
    with pytest.raises(BrokerUnavailable, match="did not end"):
        broker.account()


def serve_dripping(start: bytes, drop: bytes, seconds: float = 30.0) -> str:
    """A server that sends the start of a response and then one byte at a time."""
    server = socket.create_server(("127.0.0.1", 0))

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(start)
            for _ in range(int(seconds / 0.02)):
                connection.sendall(drop)
                time.sleep(0.02)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
        (b"HTTP/1.1 200 ", b"O"),
        (b"", b"H"),
    ],
    ids=["body", "header", "status", "version"],
)
def test_single_bytes_do_not_extend_a_request(start: bytes, drop: bytes) -> None:
    """Each byte arrives in time: the time of the whole request is limited, whatever part of it is slow."""
    broker, _ = open_alpaca(BriefClock(SystemClock()), serve_dripping(start, drop), listen=False)
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            broker.account()
        except BaseException as error:  # noqa: BLE001 - asserted below
            outcome.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout=20.0)
    assert not asking.is_alive()
    assert isinstance(outcome[0], BrokerUnavailable)
    assert "did not end" in str(outcome[0])


def test_deadline_of_one_request_does_not_end_the_next(httpserver: HTTPServer) -> None:
    """Connections are kept open between requests; only a request in progress is cut off."""
    httpserver.expect_request("/v2/clock").respond_with_json({"timestamp": "2024-03-01T13:00:00Z"})
    broker, _ = open_alpaca(CLOCK, base(httpserver), listen=False)
    for _ in range(3):
        assert broker.clock() == datetime(2024, 3, 1, 13, tzinfo=UTC)
    wait_until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))


@pytest.mark.slow
def test_server_never_receives_more_than_the_limit(start_server: StartServer, tmp_path: Path) -> None:
    """Eight threads send concurrently; the server counts on the clock that it shares with its client."""
    client = start_server(Settings(partial=0.0), pace=Pace(300.0, 300.0), clock=tmp_path / "clock.json")
    # Requests have real seconds to end: at this pace their limits would be too short for a busy machine.
    clock = ClockClient(tmp_path / "clock.json", min_real_seconds=10.0)
    broker, _ = open_alpaca(clock, client.server.url, listen=False)
    errors: list[Exception] = []

    def send_requests() -> None:
        try:
            for _ in range(50):
                broker.clock()
        except Exception as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=send_requests) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    requests = [r for r in client.server.log.records if r["kind"] == "request"]
    assert len(requests) == 400
    assert {r["status"] for r in requests} == {200}
    arrived = sorted(r["arrived"] for r in requests)
    assert all(later - earlier >= 60.0 for earlier, later in zip(arrived, arrived[200:], strict=False))


@pytest.fixture
def connected(start_server: StartServer) -> Iterator[tuple[Client, UpdateStream]]:
    client = start_server(Settings(partial=0.0))
    stream = UpdateStream(client.server.url, Keys("key", "secret"), CLOCK).start()
    wait_until(lambda: stream.state().connected)
    yield client, stream
    stream.close()


def test_updates_are_returned_once(connected: tuple[Client, UpdateStream]) -> None:
    client, stream = connected
    client.buy(client_order_id="mine")
    client.server.jump(new_york("2024-03-01 10:00"))
    found: list[Any] = []
    wait_until(lambda: found.extend(stream.updates()) or len(found) == 3)
    assert [u.event for u in found] == ["pending_new", "new", "fill"]
    assert found[-1].fill is not None
    assert (found[-1].fill.quantity, found[-1].fill.cumulative_quantity) == (10, 10)
    assert {u.order.client_order_id for u in found} == {"mine"}
    assert stream.updates() == ()


@pytest.mark.slow
def test_lost_connection_is_reopened(connected: tuple[Client, UpdateStream]) -> None:
    client, stream = connected
    client.server.faults.add([Fault("disconnect", event="pending_new")])
    client.buy()
    connections = lambda: [r for r in client.server.log.records if r.get("what") == "listening"]  # noqa: E731
    wait_until(lambda: len(connections()) == 2 and stream.state().connected)
    client.server.jump(new_york("2024-03-01 10:00"))
    wait_until(lambda: [u.event for u in stream.updates()][-1:] == ["fill"])


@pytest.mark.slow
def test_refused_connection_is_retried_with_long_pauses(start_server: StartServer) -> None:
    client = start_server(Settings(partial=0.0), faults=[Fault("refuse", times=0)])

    class HundredfoldClock(ShortTimeoutClock):
        def real_seconds(self, seconds: float) -> float:
            return seconds / 100

    stream = UpdateStream(client.server.url, Keys("key", "secret"), HundredfoldClock(SystemClock())).start()
    wait_until(lambda: stream.state().refusals >= 2)
    time.sleep(0.5)
    stream.close()
    state = stream.state()
    assert not state.connected
    assert "the stream was" in state.detail
    # The pauses are 0.15 to 0.3 real seconds, then twice as long: a few attempts, not hundreds.
    assert len([r for r in client.server.log.records if r.get("what") == "refused"]) <= 5


class ScriptedSocket:
    """A connection that authorises, and then sends one text."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def __enter__(self) -> ScriptedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, text: str) -> None:
        pass

    def recv(self, timeout: float) -> str:
        if not self.texts:
            raise TimeoutError
        return self.texts.pop(0)


AUTHORISED = '{"stream": "authorization", "data": {"status": "authorized"}}'
LISTENING = '{"stream": "listening", "data": {"streams": ["trade_updates"]}}'
YEAR_1 = "0001-01-01T00:00:00+14:00"
UPDATE = f'{{"stream": "trade_updates", "data": {{"event": "new", "timestamp": "{YEAR_1}", "order": %s}}}}'
ORDER = json.dumps(
    {
        "id": "1", "client_order_id": "c", "symbol": "AA", "side": "buy", "qty": "1", "filled_qty": "0",
        "type": "market", "time_in_force": "day", "status": "new", "updated_at": YEAR_1, "created_at": YEAR_1,
    }
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "texts",
    [
        ['{"stream": "authorization"}'],
        ['{"stream": "authorization", "data": 3}'],
        [AUTHORISED, '{"stream": "listening"}'],
        [AUTHORISED, LISTENING, "[" * 10_000 + "]" * 10_000],
        [AUTHORISED, LISTENING, '{"stream": "trade_updates"}'],
        [AUTHORISED, LISTENING, '{"stream": "trade_updates", "data": [1]}'],
        [AUTHORISED, LISTENING, UPDATE % ORDER],
    ],
)
def test_stream_survives_any_frame(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    sockets = [ScriptedSocket(*texts)]
    monkeypatch.setattr(UpdateStream, "_connection", lambda self: sockets.pop() if sockets else good)
    good = ScriptedSocket(AUTHORISED, LISTENING, *['{"stream": "trade_updates"}'] * 2)

    class InstantClock(ShortTimeoutClock):
        def real_seconds(self, seconds: float) -> float:
            return seconds / 1000

    stream = UpdateStream("http://127.0.0.1:1", Keys("key", "secret"), InstantClock(SystemClock())).start()
    stream.reconnect()
    for _ in range(100):
        if good.texts == []:
            break
        stream.reconnect()
        time.sleep(0.05)
    assert stream._thread.is_alive()
    assert good.texts == []
    stream.close()


def test_silent_stream_shows_in_its_last_message(connected: tuple[Client, UpdateStream]) -> None:
    client, stream = connected
    client.server.faults.add([Fault("silence", event="pending_new", seconds=60.0)])
    before = stream.state().last_message
    client.buy()
    client.server.jump(new_york("2024-03-01 10:00"))
    time.sleep(0.3)
    assert stream.state().connected
    assert stream.state().last_message == before
    assert stream.updates() == ()


def test_stream_does_not_connect_with_wrong_keys(start_server: StartServer) -> None:
    client = start_server(Settings(key="right", secret="right"))
    stream = UpdateStream(client.server.url, Keys("wrong-key", "wrong-secret"), CLOCK).start()
    wait_until(lambda: stream.state().refusals >= 1)
    stream.close()
    assert not stream.state().connected
    assert "wrong-secret" not in stream.state().detail

"""Keys that come back through strategies, imports, answers, receivers and configs are nowhere that an owner may look.

Each message has them as they are, URL-encoded, in base64 and split over lines.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest
from finrl_pod_app.dashboard.settings import JOURNAL_VARIABLE, RUNS_VARIABLE

from finrl_pod.fake_alpaca.faults import Fault
from tests.dashboard.page_figures import open_page
from tests.paper.process.harness import TIMEOUT, DaemonHarness, environment, fork_server

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

KEY, SECRET, WEBHOOK_SECRET = "PKROUTES0123456789AB", "routes/Secret+0123456789/abcdef", "signs/hooks+0123456789"
SECRETS = (KEY, SECRET, WEBHOOK_SECRET)


def forms(secret: str) -> list[str]:
    encoded = base64.b64encode(secret.encode()).decode()
    lines = (f"{secret[:9]}\n{secret[9:]}", f"{encoded[:7]}\r\n  {encoded[7:]}")
    return [secret, quote(secret, safe=""), quote(quote(secret, safe=""), safe=""), encoded, *lines]


MESSAGE = " ; ".join(form for secret in SECRETS for form in forms(secret))
HEADERS = {"X-Request-ID": KEY, "Location": f"/v2/{quote(SECRET)}?key={KEY}", "Retry-After": SECRET}
STRATEGY = f"""import logging, threading, warnings
MESSAGE = {MESSAGE!r}
def fail(): raise ValueError(MESSAGE)
class Mine:
    feature_names = ()
    def target_weights(self, window, positions):
        day = str(window.times[-1])[:10]
        if day == "2019-01-02":
            print(MESSAGE)
            warnings.warn(MESSAGE)
            logging.getLogger(MESSAGE).error(MESSAGE)
            threading.Thread(target=fail).start()
            try:
                fail()
            except ValueError as error:
                error.add_note(MESSAGE)
                raise RuntimeError(MESSAGE) from error
        return [0.09 if (int(day[-2:]) + n) % 2 else 0.05 for n in range(len(window.symbols))]
"""
CONFIGS = {  # file name -> what replaces the settings of the run
    "import": {"": {"strategy": "bad.py:Mine"}},
    "missing": {"": {"strategy": f"own.py:{KEY}"}},
    "unknown": {"": {"strategy": SECRET}},
    "symbols": {"": {"symbols": [MESSAGE]}},
    "setting": {"": {SECRET.replace("/", "_").replace("+", "_"): 1, KEY: MESSAGE}},
    "address": {"broker": {"url": f"https://{KEY}:{quote(SECRET, safe='')}@paper-api.alpaca.markets"}},
    "mode": {"schedule": {"mode": MESSAGE}},
    "webhook": {"monitoring": {"webhook": f"http://{KEY}.example.com/{quote(SECRET)}"}},
}


class Receiver(BaseHTTPRequestHandler):
    """Refuses every alert with an answer full of keys, and every other one with an answer that cannot be read."""

    received: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.received.append(str(self.headers).encode() + self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.received) % 2:
            self.wfile.write(f"HTTP/1.1 200 {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}\r\n".encode())
            return
        self.send_response(500, SECRET)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(MESSAGE.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def command(harness: DaemonHarness, *words: str | Path, **variables: str) -> int:
    """Run a command that prints to commands.log; return its exit code."""
    request = {
        "arguments": [str(word) for word in words],
        "environment": environment(**variables),
        "log": str(harness.folder / "commands.log"),
        "hooks": {},
    }
    return fork_server().spawn(request).wait(TIMEOUT)


def broker_faults() -> list[Fault]:
    """Answers of the broker with keys in bodies and headers: refusals, errors, pages, redirects, and odd values."""
    html = {**HEADERS, "Content-Type": "text/html"}
    order = {"method": "POST", "path": "/v2/orders"}
    return [
        Fault("answer", status=422, body={"code": 40010001, "message": MESSAGE}, headers=HEADERS, times=2, **order),
        Fault("answer", status=403, body={"code": 40310000, "message": MESSAGE}, headers=HEADERS, **order),
        Fault("answer", status=500, body=f"<html>{MESSAGE}</html>", headers=html, **order),
        Fault("answer", status=200, body={"id": MESSAGE, "status": MESSAGE}, **order),
        Fault("answer", status=307, body={}, headers=HEADERS, **order),
    ]


def outage_faults() -> list[Fault]:
    bodies = ({"timestamp": MESSAGE}, [MESSAGE], f"<html>{MESSAGE}</html>", {"message": MESSAGE})
    faults = [Fault("answer", path="/v2/clock", status=200, body=body, headers=HEADERS) for body in bodies]
    return [*faults, Fault("answer", path="/v2/clock", status=503, body={"message": MESSAGE}, headers=HEADERS, times=0)]


def page_texts(harness: DaemonHarness, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """All that the dashboard shows of the account."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(harness.journal))
    monkeypatch.setenv(RUNS_VARIABLE, str(harness.folder))
    monkeypatch.setenv("FINRL_POD_HOME", str(harness.folder / "home"))
    app = open_page("paper", view="Log")
    assert not app.exception
    frames = [frame.value.to_csv() for frame in app.dataframe]
    texts = [element.value for kind in (app.markdown, app.caption, app.warning, app.error) for element in kind]
    assert any("***" in text for text in frames)
    return {"page": "\n".join([*frames, *map(str, texts)])}


def leaks(texts: dict[str, str]) -> list[str]:
    """Where a form of a secret is; white space and escapes within it do not matter."""

    def plain(text: str) -> str:
        return re.sub(r"\\+[nrt]|\s", "", text)

    flat_texts = {name: plain(text) for name, text in texts.items()}
    return [
        f"{name}: {form}" for name, text in flat_texts.items() for s in SECRETS for form in forms(s)
        if plain(form) in text
    ]  # fmt: skip


def test_keys_leave_by_no_route(tmp_path: Path, receiver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(STRATEGY)
    (tmp_path / "bad.py").write_text(f"raise ImportError({MESSAGE!r})\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    keys = {"APCA_API_KEY_ID": KEY, "APCA_API_SECRET_KEY": SECRET, "FINRL_POD_WEBHOOK_SECRET": WEBHOOK_SECRET}
    variables = {**keys, "FINRL_POD_ALERT_URLS": f"json://{receiver}/apprise"}
    monitoring = {"webhook": f"http://{receiver}/hook", "port": port, "heartbeat": "heartbeat.json"}
    config = {"": {"strategy": "own.py:Mine"}, "monitoring": monitoring}
    with DaemonHarness(tmp_path, config=config) as harness:
        monkeypatch.chdir(tmp_path)
        harness.launch(**variables)
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 600, lambda: harness.server.faults.add(broker_faults()))
        harness.run_until(harness.days[3].open - 3000, lambda: harness.server.faults.add(outage_faults()))
        harness.run_until(harness.days[3].open - 600, harness.server.faults.clear)
        harness.run_until(harness.days[3].close + 600, harness.slow_clock)
        harness.wait(lambda: Receiver.received)
        for name, more in CONFIGS.items():
            path = harness.write_config(more, tmp_path / f"{name}.toml")
            assert command(harness, "paper", "run", path, "--json", **variables) == 2, name
        command(harness, "paper", "run", tmp_path / "import.toml", "--check", "--json", **variables)
        (tmp_path / "broken.toml").write_text(f"name = '''{MESSAGE}''' {SECRET}\n")
        assert command(harness, "paper", "run", tmp_path / "broken.toml", **variables) == 2
        harness.server.faults.add([Fault("answer", status=503, body={"message": MESSAGE}, headers=HEADERS, times=0)])
        for words in ("verify", "adopt --json", "run --check", "status --json", "status", "orders", "alert --test"):
            name, *options = words.split()
            command(harness, "paper", name, harness.toml, *options, **variables)
        texts = {}
        for page in ("metrics", "health"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=60) as answer:
                texts[page] = answer.read().decode()
        harness.server.faults.clear()
        assert harness.stop() == 0
        alerts = harness.alerts()
        texts |= page_texts(harness, monkeypatch)
    with closing(sqlite3.connect(harness.journal)) as journal:
        for (table,) in journal.execute("select name from sqlite_master where type = 'table'").fetchall():
            texts[table] = "\n".join(json.dumps(row) for row in journal.execute(f'select * from "{table}"'))
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix not in (".py", ".toml")]
    texts |= {file.name: file.read_bytes().decode("latin1") for file in written if file != harness.log}
    texts["alerts"] = b"\n".join(Receiver.received).decode("latin1")
    assert leaks(texts) == []
    assert {kind for _, kind, *_ in (alert.replace(":", "").split() for alert in alerts)} >= {
        "failed", "rejected", "unavailable",
    }, alerts  # fmt: skip
    for name in ("daemon.log", "commands.log", "alerts", "decisions", "order_events"):
        assert "***" in texts[name], name

"""`finrl-pod paper fake-alpaca` as a process: serving, stopping, and errors of its options."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run

from finrl_pod.data.store import Store
from tests.app import command
from tests.paper.factories import crypto_prices

pytestmark = pytest.mark.slow


def url_of(server: subprocess.Popen[str]) -> str:
    """Address of a server that prints it as JSON once it listens."""
    assert server.stdout is not None
    text = server.stdout.readline()
    while not text.rstrip().endswith("}"):
        text += server.stdout.readline()
    url: str = json.loads(text)["url"]
    return url


def test_server_runs_until_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    faults = tmp_path / "faults.json"
    faults.write_text('[{"kind": "answer", "path": "/v2/account", "status": 503}]')
    options = ["--port", "0", "--start", "2020-01-02", "--json", "--log", str(log), "--faults", str(faults)]
    server = command.start(tmp_path, "paper", "fake-alpaca", "sample", *options)
    try:
        url = url_of(server)
        request = urllib.request.Request(
            f"{url}/v2/clock", headers={"APCA-API-KEY-ID": "k", "APCA-API-SECRET-KEY": "s"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["timestamp"].startswith("2020-01-02T13:0")
        with urllib.request.urlopen(f"{url}/fake/state", timeout=10) as answer:
            assert json.load(answer)["faults_waiting"] == 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    finally:
        server.kill()
        server.communicate()
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["server", "request", "server"]


def test_crypto_pairs_trade_at_the_weekend(tmp_path: Path) -> None:
    Store(tmp_path).save(crypto_prices())
    options = ["pairs", "--crypto", "--start", "2024-03-02", "--speed", "0", "--port", "0", "--json"]
    server = command.start(tmp_path, "paper", "fake-alpaca", *options)
    try:
        url = url_of(server)
        keys = {"APCA-API-KEY-ID": "k", "APCA-API-SECRET-KEY": "s", "Content-Type": "application/json"}
        order = {"symbol": "BTC/USD", "qty": "0.5", "side": "buy", "type": "market", "time_in_force": "gtc"}
        request = urllib.request.Request(f"{url}/v2/orders", json.dumps(order).encode(), keys)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["asset_class"] == "crypto"
        later = json.dumps({"jump": "2024-03-02T09:00:00-05:00"}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/fake/clock", later, keys), timeout=10).close()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/positions", headers=keys), timeout=10) as answer:
            (position,) = json.load(answer)
        assert (position["symbol"], position["qty"]) == ("BTCUSD", "0.5")
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["sample", "--start", "2030-01-02"], "1990-01-02 to"),
        (["nothing"], "nothing"),
        (["sample", "--faults", "missing.json"], "cannot read missing.json"),
    ],
)
def test_invalid_options_are_one_line_errors(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))
    assert run(["paper", "fake-alpaca", "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error

"""Connecting to Ray: one time limit, Ctrl-C at any time, and one sentence that names another engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from finrl_pod.errors import SetupError
from finrl_pod.tournament.executors import ray_connection
from finrl_pod.tournament.executors.ray_connection import WAY_OUT, connect, connection_error

CONNECT = "import sys; from finrl_pod.tournament.executors.ray_connection import connect; connect(sys.argv[1], 3.0)"


@pytest.fixture
def departures(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Errors with which the program left a cluster that does not answer; nothing ends the tests."""
    errors: list[BaseException | None] = []
    monkeypatch.setattr(ray_connection, "leave", lambda: errors.append(sys.exc_info()[1]))
    return errors


def replace_ray(monkeypatch: pytest.MonkeyPatch, init: Callable[..., None]) -> None:
    ray = SimpleNamespace(init=init, is_initialized=lambda: False, __version__="2.60.0")
    monkeypatch.setattr(ray_connection, "import_ray", lambda _: ray)


def test_a_start_that_takes_too_long_names_another_engine(
    monkeypatch: pytest.MonkeyPatch, departures: list[BaseException | None]
) -> None:
    has_ended = threading.Event()
    replace_ray(monkeypatch, lambda **_: has_ended.wait() and None)
    monkeypatch.setattr(ray_connection, "INTERRUPT_SECONDS", 0.01)
    with pytest.raises(SetupError) as caught:
        connect(None, 0.05)
    has_ended.set()
    assert (
        str(caught.value)
        == f"Ray started no cluster on this machine within 0.05 s; see `finrl-pod doctor`, or {WAY_OUT}"
    )
    assert departures == [caught.value]


def test_ctrl_c_ends_a_connection_that_hangs(
    monkeypatch: pytest.MonkeyPatch, departures: list[BaseException | None]
) -> None:
    has_ended = threading.Event()
    main_thread = threading.get_ident()

    def hang(**_: Any) -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)
        has_ended.wait()

    replace_ray(monkeypatch, hang)
    with pytest.raises(KeyboardInterrupt):
        connect(None)
    has_ended.set()
    assert isinstance(departures[0], KeyboardInterrupt)


@pytest.mark.parametrize(
    ("error", "warning", "expected"),
    [
        (Exception("The current node timed out during startup."), "", "cannot be used: The current node timed out"),
        (
            ConnectionError("Failed to connect"),
            "[1 W 2] rpc: Unauthenticated",
            "did not accept the token: Failed to connect (rpc: Unauthenticated); set",
        ),
        (RuntimeError("no token was found. Ensure"), "", "did not accept the token: no token was found; set RAY_AUTH"),
        (RuntimeError("Version mismatch: Ray: 2.9.0"), "", "has another version of Ray or Python than this"),
    ],
)
def test_errors_of_ray_become_one_sentence(
    error: Exception,
    warning: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    departures: list[BaseException | None],
) -> None:
    def fail(**_: Any) -> None:
        os.write(2, warning.encode())  # as native code does
        raise error

    replace_ray(monkeypatch, fail)
    with pytest.raises(SetupError) as caught:
        connect(None)
    assert expected in str(caught.value)
    assert str(caught.value).endswith(WAY_OUT)
    assert not departures  # Ray has ended by itself


def test_the_cluster_and_the_cause_of_an_error_are_named() -> None:
    error = ConnectionError("Failed to connect to Ray cluster")
    error.__cause__ = RuntimeError("No node info found. Look")
    message = connection_error("127.0.0.2:9", error, "", "2.60.0")
    reason = "cannot be used: No node info found; see `finrl-pod doctor`"
    assert message == f"the Ray cluster at 127.0.0.2:9 {reason}, or {WAY_OUT}"


@pytest.mark.slow
def test_a_program_that_is_no_ray_is_left() -> None:
    """The native code of Ray still waits for it when the process ends."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = f"127.0.0.2:{server.getsockname()[1]}"
        process = subprocess.run(
            [sys.executable, "-c", CONNECT, address],
            env={**os.environ, "RAY_AUTH_TOKEN": "0" * 32},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith(
        f"no Ray cluster answered at {address} within 3 s; correct --address, or {WAY_OUT}"
    )

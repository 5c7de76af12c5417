"""Connections to Ray clusters, with one time limit over connecting and starting.

`connect` joins a cluster or starts one on this machine: loopback address, a token for every call, no telemetry.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from finrl_pod.errors import ConfigError, SetupError

LOOPBACK = "127.0.0.1"
# Keeps 127.0.0.1 for a cluster of one node. Ray would use the address of the network card.
ONE_NODE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
CONNECT_SECONDS = 5.0  # for a connection, before Ray is asked
PROBE_SECONDS = 1.0  # for a connection to a node that may be dead
START_SECONDS = 120.0  # to connect to a cluster or to start one, until the first shard is ready
OBJECT_STORE_BYTES = 200 << 20  # of a cluster started here; what crosses are snapshots and replay buffers
INTERRUPT_SECONDS = 0.5  # until Ctrl-C is noticed if the system gives it to a thread of Ray
WAY_OUT = "use --engine processes"
STDERR = 2  # file descriptor
_LOG_PREFIX = re.compile(r"^\[.*?\] ")  # time, level and process of a line of native code
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills shards by the memory of the whole machine
    "RAY_worker_niceness": "0",  # 15 by default: every other process would go before shards
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # Ray prints errors of nodes to standard output, where the report goes
    "RAY_AUTH_MODE": "token",
    "RAY_GCS_SERVER_REQUEST_TIMEOUT_SECONDS": f"{START_SECONDS:.0f}",  # for a node of a new cluster to register
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # shards without a GPU keep CUDA_VISIBLE_DEVICES
}


def import_ray(extra: Mapping[str, str] | None = None) -> Any:
    """The ray module, set up for this program. Raises SetupError if it is not installed.

    extra: environment variables besides `ENVIRONMENT`. Ray reads them at the first import.
    """
    for name, value in {**ENVIRONMENT, **(extra or {})}.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise SetupError(
            f'--engine ray needs Ray, and it is not installed: pip install "finrl-pod[ray]", or {WAY_OUT}'
        ) from None
    logging.getLogger("ray").setLevel(logging.ERROR)  # otherwise it warns that a thread starts it
    return ray


def connect(address: str | None, seconds: float = START_SECONDS) -> Any:
    """Join the cluster at HOST:PORT, or start one on the loopback address; returns the ray module.

    A process has one connection: while there is one, nothing is done.
    A cluster that others started needs their token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH. seconds: time limit.
    Raises ConfigError for a malformed address, SetupError if nothing listens or answers in time, or for a cluster with
    another version or token.
    """
    ray = import_ray(ONE_NODE if address is None else None)
    if ray.is_initialized():
        return ray
    if address is not None:
        check_listening(address)
    options: dict[str, str | bool | int] = {
        "logging_level": "ERROR",
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address is None:
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        options["address"] = address
        if (host := address.rpartition(":")[0]).startswith("127."):
            options["_node_ip_address"] = host
    _init(ray, options, address, seconds)
    return ray


def _init(ray: Any, options: Mapping[str, str | bool | int], address: str | None, seconds: float) -> None:
    """Call `ray.init` in a thread: it waits in native code, where neither Ctrl-C nor a time limit would end it."""
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def run() -> None:
        try:
            ray.init(**options)
        except BaseException as error:  # noqa: BLE001  Ray raises Exception itself if a node does not start
            errors.append(error)
        has_ended.set()
        while ray.is_initialized():  # the kernel ends the servers of a cluster with the thread that started them
            time.sleep(1.0)

    with captured_errors() as output:
        try:
            threading.Thread(target=run, name="ray.init", daemon=True).start()
            deadline = time.monotonic() + seconds
            while not has_ended.wait(INTERRUPT_SECONDS):
                if time.monotonic() > deadline:
                    raise SetupError(timeout_error(address, seconds))
        except BaseException:
            leave()
            raise
        output.seek(0)
        log = output.read().decode(errors="replace")
    if errors:
        raise SetupError(connection_error(address, errors[0], log, str(ray.__version__)))


@contextlib.contextmanager
def captured_errors() -> Iterator[BinaryIO]:
    """Collect what any code of this process writes to standard error; native code of Ray writes warnings to it."""
    sys.stderr.flush()
    original = os.dup(STDERR)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), STDERR)
        try:
            yield output
        finally:
            os.dup2(original, STDERR)
            os.close(original)


def disconnect(ray: Any) -> None:
    """Leave the cluster, and end one that was started here; nothing without a connection."""
    if not ray.is_initialized():
        return
    if listens(*control_address(ray).rsplit(":", 1)):
        ray.shutdown()
    else:
        leave()


def control_address(ray: Any) -> str:
    """HOST:PORT of the control process (GCS)."""
    return str(ray.get_runtime_context().gcs_address)


def listens(host: str, port: str | int) -> bool:
    """Whether a process accepts connections: much faster than the health checks of the cluster."""
    try:
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def leave() -> None:
    """Leave a cluster whose control process is gone or does not answer, so that the program can end.

    A normal shutdown of Ray waits for the control process and then aborts; without a shutdown, its threads crash at the
    exit. The exit code is 0 where no error is on its way as this is called, 130 for an interrupt, else 2.
    """
    error = sys.exc_info()[1]
    code = 0 if error is None else 130 if isinstance(error, KeyboardInterrupt) else 2
    sys.excepthook = sys.__excepthook__  # the hook of Ray reports the error to the control process
    atexit.register(_end, code)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def check_listening(address: str) -> None:
    """Raise ConfigError for a malformed HOST:PORT, SetupError where connections are refused."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--address must be HOST:PORT of a Ray cluster, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise SetupError(
            f"nothing listens at {address} ({error.strerror or error}); start a cluster with `ray start --head`, "
            f"leave out --address to start one on this machine, or {WAY_OUT}"
        ) from None


def timeout_error(address: str | None, seconds: float) -> str:
    """Message for a cluster that does not answer in time."""
    if address is None:
        return f"Ray started no cluster on this machine within {seconds:g} s; see `finrl-pod doctor`, or {WAY_OUT}"
    return f"no Ray cluster answered at {address} within {seconds:g} s; correct --address, or {WAY_OUT}"


def connection_error(address: str | None, error: BaseException, log: str, version: str) -> str:
    """Message for an error of `ray.init`. log: what Ray wrote to standard error."""
    cluster = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    while error.__cause__ is not None:  # the outermost error says no more than that it failed
        error = error.__cause__
    text = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    if log.strip():
        text += f" ({_LOG_PREFIX.sub('', log.strip().splitlines()[-1])})"
    if "version mismatch" in text.lower():
        reason = f"has another version of Ray or Python than this environment (Ray {version})"
        fix = "install the same ones"
    elif "Unauthenticated" in log or "token" in text:
        reason = "did not accept the token"
        fix = "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    else:
        reason = "cannot be used"
        fix = "see `finrl-pod doctor`"
    return f"{cluster} {reason}: {text[:300]}; {fix}, or {WAY_OUT}"

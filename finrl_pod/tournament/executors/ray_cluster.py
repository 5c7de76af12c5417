"""Connecting to a Ray cluster, or starting one on this machine: loopback, a token for every call, no telemetry."""

from __future__ import annotations

import atexit
import importlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from typing import Any

from finrl_pod.errors import ConfigError, SetupError

LOOPBACK = "127.0.0.1"
# Keeps 127.0.0.1 for a cluster of one node, which Ray otherwise replaces by the network card's address.
ONE_NODE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 200 << 20  # of a cluster started here; what crosses are snapshots and replay buffers
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills shards by the whole machine's memory
    "RAY_worker_niceness": "0",  # 15 by default: every other process would go before shards
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # Ray prints errors of nodes to standard output, where the report goes
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # shards without a GPU keep CUDA_VISIBLE_DEVICES
}


def import_ray(extra: Mapping[str, str] | None = None) -> Any:
    """The ray module, set up for this program. Raises SetupError if it is not installed.

    extra: environment variables besides `ENVIRONMENT`, which Ray reads when it is imported first.
    """
    for name, value in {**ENVIRONMENT, **(extra or {})}.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise SetupError(
            '--engine ray needs Ray, which is not installed: pip install "finrl-pod[ray]", or use --engine processes'
        ) from None


def connect(address: str | None) -> Any:
    """Join the cluster at HOST:PORT, or start one on the loopback address; returns the ray module.

    A cluster that others started needs their token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH. Raises ConfigError for a
    malformed address, SetupError where nothing listens or where the cluster has another version or another token.
    """
    if address is not None:
        check_listening(address)
    ray = import_ray(ONE_NODE if address is None else None)
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
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
    try:
        ray.init(**options)
    except (RuntimeError, ConnectionError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise SetupError(explained(address, error, str(ray.__version__))) from None
    return ray


def leave() -> None:
    """Leave a cluster whose control process is gone, so that the program can end.

    Ray's own shutdown waits for the control process and then aborts; without it, Ray's threads crash at the exit. The
    exit code is 0 where no error is on its way as this is called, 130 for an interrupt, else 2.
    """
    error = sys.exc_info()[1]
    code = 0 if error is None else 130 if isinstance(error, KeyboardInterrupt) else 2
    sys.excepthook = sys.__excepthook__  # Ray's reports the error to the control process
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
            f"nothing listens at {address} ({error.strerror or error}); start a cluster with `ray start --head`, or "
            "leave out --address to start one on this machine"
        ) from None


def explained(address: str | None, error: Exception, version: str) -> str:
    """One sentence on why a cluster cannot be used."""
    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    text = " ".join(str(error).split())
    if "version mismatch" in text.lower():
        return f"{where} has another version of Ray or Python than this environment (Ray {version}): {text[:300]}"
    if "auth" in text.lower() or "token" in text.lower():
        return f"{where} refused the token; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's: {text[:200]}"
    return f"{where} cannot be used: {text[:300]}"

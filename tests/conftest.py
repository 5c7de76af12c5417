"""Settings of all tests: fixed seeds, an isolated trial registry, and no network beyond loopback."""

from __future__ import annotations

import gc
import ipaddress
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

SEED = 0
os.environ.pop("COLUMNS", None)  # of the terminal that the tests run in: tables are as wide as in a pipe

# Deterministic examples by default; HYPOTHESIS_PROFILE=explore generates new ones.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))


gc.disable()  # collecting the tests makes no garbage, see `pytest_collection_finish`


def pytest_collection_finish() -> None:
    """Keep the modules and the tests out of later collections: each full one took half a second with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with many slow tests first: with short files at the end, all workers finish at about the same time."""
    slow_tests = Counter(
        item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")
    )
    items.sort(key=lambda item: -slow_tests[item.path])


class NetworkForbidden(RuntimeError):
    """Raised when a test accesses the network."""


def _refuse(host: object) -> None:
    if host in (None, "", b"", "localhost", b"localhost"):
        return
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        loopback = ipaddress.ip_address(text.split("%")[0]).is_loopback
    except ValueError:
        loopback = False
    # Test servers bind to 0.0.0.0, which does not reach other hosts.
    if not loopback and text not in ("0.0.0.0", "::"):
        raise NetworkForbidden(f"tests may only connect to loopback addresses, got {text}")


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuse name resolution and connections beyond loopback in this process."""
    patch = pytest.MonkeyPatch()
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(host)
        return getaddrinfo(host, *args, **kwargs)

    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _isolated_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Record the trials of tests in a temporary folder, not in the user's registry."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FINRL_POD_HOME", str(tmp_path_factory.mktemp("home")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Seed the global generators, which only other libraries use."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)

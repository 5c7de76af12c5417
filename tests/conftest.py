"""What holds for every test: seeds, and no network but the loopback."""

from __future__ import annotations

import ipaddress
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

SEED = 0

# The same examples on every run; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


class NetworkForbidden(RuntimeError):
    """A test reached for the network."""


def _refuse(host: object) -> None:
    if host in (None, "", b"", "localhost", b"localhost"):
        return
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        loopback = ipaddress.ip_address(text.split("%")[0]).is_loopback
    except ValueError:
        loopback = False
    # 0.0.0.0 is what a test server binds to; nothing outside is reached by it.
    if not loopback and text not in ("0.0.0.0", "::"):
        raise NetworkForbidden(f"tests reach no network but the loopback, this one wanted {text}")


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuses look-ups and connections beyond the loopback, in this process."""
    patch = pytest.MonkeyPatch()
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        return connect_ex(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(host)
        return look_up(host, *args, **kwargs)

    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    patch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _own_register(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trials that tests make are no trials of the user: they are counted in a folder of their own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FINRL_POD_HOME", str(tmp_path_factory.mktemp("home")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """The project draws from streams of its own; this is for libraries that use the global ones."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)

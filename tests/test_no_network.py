"""The network guard of conftest.py."""

from __future__ import annotations

import socket

import pytest


def test_network_access_is_refused() -> None:
    with pytest.raises(RuntimeError, match="may only connect to loopback addresses"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with pytest.raises(RuntimeError, match="may only connect to loopback addresses"):
        socket.getaddrinfo("example.com", 443)


def test_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername()[0] == "127.0.0.1"

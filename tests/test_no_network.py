"""The guard itself: without it a test could pass by way of the network."""

from __future__ import annotations

import socket

import pytest


def test_the_network_is_out_of_reach() -> None:
    with pytest.raises(RuntimeError, match="no network but the loopback"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with pytest.raises(RuntimeError, match="no network but the loopback"):
        socket.getaddrinfo("example.com", 443)


def test_the_loopback_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername()[0] == "127.0.0.1"

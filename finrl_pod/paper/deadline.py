"""A bound on the total time of one HTTP request: connecting, TLS handshake, status line, headers and body.

Timeouts of sockets restart with every byte received, so a server that sends one byte at a time could hold a request for
ever. A timer shuts the connection down instead, whatever it is waiting for.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from typing import Any

_current = threading.local()


class RequestDeadline:
    """Shuts the connections of the requests that this thread sends inside the context down after `seconds`.

    A context manager. expired: the time was up, so whatever was read is incomplete.
    """

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> RequestDeadline:
        _current.deadline = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        _current.deadline = None
        self._timer.cancel()
        with self._lock:
            self._sockets.clear()

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down too when the time is up, or now if it is."""
        with self._lock:
            self._sockets.append(connection)
            if self.expired:
                _shut_down(connection)

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            for connection in self._sockets:
                _shut_down(connection)


def watch_connections(pools: Any) -> None:
    """Make the connections that a PoolManager of urllib3 opens from now on keep to the deadline of their thread."""
    pools.pool_classes_by_scheme = {
        scheme: _bounded_pool(pool) for scheme, pool in pools.pool_classes_by_scheme.items()
    }


@functools.cache
def watch_all_connections() -> None:
    """The same for every PoolManager that is created from now on, for libraries that create their own."""
    from urllib3 import poolmanager

    watch_connections(poolmanager)


def _bounded_pool(base: Any) -> Any:
    """A pool class whose connections can be shut down from another thread, before and after the TLS handshake."""
    if hasattr(base.ConnectionCls, "handle"):
        return base

    class BoundedConnection(base.ConnectionCls):  # type: ignore[misc]
        handle: socket.socket | None = None

        def _new_conn(self) -> socket.socket:
            connected_socket: socket.socket = super()._new_conn()
            # A duplicate: TLS takes over the descriptor of the connected socket.
            self.handle = connected_socket.dup()
            _watch(self.handle)
            return connected_socket

        def close(self) -> None:
            super().close()
            handle = self.handle
            self.handle = None
            if handle is not None:
                handle.close()

    class BoundedPool(base):  # type: ignore[misc]
        ConnectionCls = BoundedConnection

        def _get_conn(self, timeout: float | None = None) -> Any:
            connection = super()._get_conn(timeout)
            if connection.handle is not None:  # a new connection is watched when it connects
                _watch(connection.handle)
            return connection

    return BoundedPool


def _watch(connection: socket.socket) -> None:
    deadline: RequestDeadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watch(connection)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        connection.shutdown(socket.SHUT_RDWR)

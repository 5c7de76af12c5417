"""Messages between the environment and a worker: a length, then that many bytes, over a socket.

The two messages of a step are empty, so that each costs one call of the system on either side. `Connection` of
multiprocessing takes several and many Python calls besides, which counts with dozens of workers on few cores.
"""

from __future__ import annotations

import os
import select
import struct

_LENGTH = struct.Struct("I")
_EMPTY = _LENGTH.pack(0)
CHUNK = 65_536  # bytes


class Channel:
    """One end of a socket, by its file descriptor; `close` closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Send a message. Raises BrokenPipeError or ConnectionResetError if the other end is closed."""
        if not message and os.write(self._descriptor, _EMPTY) == len(_EMPTY):
            return
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def receive(self) -> bytes:
        """Wait for a message. Raises EOFError or ConnectionResetError if the other end is closed."""
        head = self._read(_LENGTH.size)
        return b"" if head == _EMPTY else self._read(_LENGTH.unpack(head)[0])

    def has_message(self, seconds: float) -> bool:
        """Wait up to that long for a message, or for the other end to be closed."""
        return bool(self._poll.poll(1000 * seconds))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        data = os.read(self._descriptor, min(count, CHUNK))
        while len(data) < count:
            more = os.read(self._descriptor, min(count - len(data), CHUNK)) if data else b""
            if not more:
                raise EOFError
            data += more
        return data

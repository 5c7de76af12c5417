"""Messages over a socket: empty and large ones, and a closed other end."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from finrl_pod_envs.gymnasium_pool.worker import CHUNK, Channel


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    return tuple(Channel(end.detach()) for end in socket.socketpair())  # type: ignore[return-value]


@pytest.mark.parametrize("message", [b"", b"x", b"\0" * 5, bytes(range(256)) * 2_000], ids=len)
def test_messages_arrive_as_they_were_sent(ends: tuple[Channel, Channel], message: bytes) -> None:
    """Also one that is larger than the socket's buffer."""
    ours, theirs = ends
    sender = threading.Thread(target=lambda: [ours.send(each) for each in (message, b"next")])
    sender.start()
    assert theirs.receive() == message
    assert theirs.receive() == b"next"
    sender.join()


def test_waiting_ends_with_a_message_or_the_other_end(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert not theirs.has_message(0.0)
    ours.send(b"")
    assert theirs.has_message(0.0)
    theirs.receive()
    ours.close()
    assert theirs.has_message(0.0)
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        theirs.send(b"x" * CHUNK)


def test_message_that_breaks_off_is_the_end(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    os.write(ours._descriptor, b"\5\0\0\0ab")
    ours.close()
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()

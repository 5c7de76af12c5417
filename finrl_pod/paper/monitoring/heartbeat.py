"""The sign of life: a file, systemd's watchdog, and the age that health and metrics show."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

from finrl_pod.files import replace_file

EVERY = 1.0  # real seconds between two writes
STALE = 60.0  # an older beat means that the loop hangs: every call to a broker ends sooner


class Heartbeat:
    """Beats from the daemon's loop alone: when the loop stalls, file and watchdog go stale."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = float("-inf")
        self.trading = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def beat(self, *, trading: bool) -> None:
        """Cheap to call often. trading: recovery is through."""
        now = time.monotonic()
        if now - self._last < EVERY and trading == self.trading:
            return
        self._last, self.trading = now, trading
        _notify("WATCHDOG=1\nREADY=1" if trading else "WATCHDOG=1")
        if self._path is not None:
            beat = {"at": datetime.now(UTC).isoformat(), "pid": os.getpid(), "trading": trading}
            with contextlib.suppress(OSError):  # a disk that takes nothing leaves a stale file, which is the signal
                replace_file(self._path, json.dumps(beat).encode())

    @property
    def age(self) -> float:
        """Real seconds since the last beat; infinite before the first."""
        return time.monotonic() - self._last

    @property
    def alive(self) -> bool:
        """The loop has come round lately."""
        return self.age < STALE


def _notify(state: str) -> None:
    """Tell systemd, where it started us (sd_notify's protocol: one datagram to the socket that it names)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            return  # nobody listens any more: the watchdog draws its own conclusion

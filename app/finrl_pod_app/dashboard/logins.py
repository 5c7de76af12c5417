"""Logins of browsers: a random token in a cookie, its hash in a file with mode 600, valid for twelve hours.

The hash covers the stored password too, so a new password ends all logins.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable

from finrl_pod.errors import SetupError
from finrl_pod.files import replace_file
from finrl_pod_app.dashboard.passwords import MODE, Password

FILE = "dashboard-logins.json"
LIFETIME = 12 * 3600  # seconds
TOKEN_BYTES = 32


def cookie_name(port: int) -> str:
    """Name of the cookie of a server; browsers send the cookies of one port to all ports of a host."""
    return f"finrl_pod_login_{port}"


class Logins:
    """The logins stored beside a password, by default the one of the user. Servers with one password share them.

    clock: seconds since 1970.
    """

    def __init__(self, password: Password | None = None, clock: Callable[[], float] = time.time) -> None:
        self._password = Password() if password is None else password
        self._file = self._password.file.with_name(FILE)
        self._clock = clock
        self._lock = threading.Lock()
        self._modified = -1
        self._ends: dict[str, float] = {}  # by hash

    def start(self) -> str:
        """The token of a new login. Raises SetupError if its hash cannot be stored."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            self._read()
            self._ends[self._hash(token)] = self._clock() + LIFETIME
            self._write()
        return token

    def is_valid(self, token: str) -> bool:
        """True until the login ends: after its lifetime, by `end`, or with a new password."""
        with self._lock:
            self._read()
            return self._ends.get(self._hash(token), 0.0) > self._clock()

    def end(self, token: str) -> None:
        """End a login. Raises SetupError if that cannot be stored."""
        with self._lock:
            self._read()
            if self._ends.pop(self._hash(token), None) is not None:
                self._write()

    def _hash(self, token: str) -> str:
        """The hash of a token with the stored password. Without a password it is random, and no login is valid."""
        try:
            password = self._password.file.read_bytes()
        except OSError:
            password = secrets.token_bytes(TOKEN_BYTES)
        return hashlib.sha256(token.encode("utf-8", "surrogatepass") + b"\0" + password).hexdigest()

    def _read(self) -> None:
        """Read the file if it has changed; a damaged one has no logins."""
        try:
            modified = self._file.stat().st_mtime_ns
            if modified == self._modified:
                return
            ends = json.loads(self._file.read_text())
            self._ends = {str(key): float(end) for key, end in ends.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            self._ends = {}
            modified = -1
        self._modified = modified

    def _write(self) -> None:
        now = self._clock()
        self._ends = {key: end for key, end in self._ends.items() if end > now}
        try:
            replace_file(self._file, json.dumps(self._ends).encode(), MODE)
            self._modified = self._file.stat().st_mtime_ns
        except OSError as error:
            raise SetupError(f"cannot store logins in {self._file}: {error.strerror}") from None

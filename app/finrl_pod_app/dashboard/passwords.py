"""The password of the dashboard: an Argon2id hash in a file with mode 600, and a rate limit on guesses.

Argon2 (RFC 9106) takes tens of milliseconds and 64 MiB per guess, and hashes are compared in constant time. After a
wrong password all sessions of an address wait, twice as long after each further one: parallel sessions gain nothing.
"""

from __future__ import annotations

import ipaddress
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from finrl_pod.errors import InputError, SetupError
from finrl_pod.files import replace_file

if TYPE_CHECKING:
    from argon2 import PasswordHasher

FILE = "dashboard-password"
MODE = 0o600
MIN_LENGTH, MAX_LENGTH = 8, 256  # characters; the upper limit bounds the work of hashing
FIRST_WAIT, MAX_WAIT = 1.0, 300.0  # seconds after a wrong password, doubled by each further one
WINDOW, MAX_WRONG = 3600.0, 100  # at most so many wrong passwords of all visitors within so many seconds


class PasswordRefused(InputError):
    """The password is wrong, was tried too soon after a wrong one, or is not set."""


class Password:
    """The password stored in `file`, by default in the finrl_pod folder of the user."""

    def __init__(self, file: Path | None = None) -> None:
        if file is None:
            from finrl_pod.files import home

            file = home() / FILE
        self.file = file

    @property
    def is_set(self) -> bool:
        """True if a password is set."""
        return self.file.is_file()

    def set(self, text: str) -> None:
        """Store a new password. Raises InputError for an invalid length, SetupError if it cannot be stored."""
        if not MIN_LENGTH <= len(text) <= MAX_LENGTH:
            raise InputError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters, got {len(text)}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, _hasher().hash(text).encode() + b"\n", MODE)
        except OSError as error:
            raise SetupError(
                f"cannot store the password in {self.file}: {error.strerror}; set FINRL_POD_HOME to a writable folder"
            ) from None

    def matches(self, text: str) -> bool:
        """Whether `text` is the password. Raises PasswordRefused if none is set or the file is invalid."""
        from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

        try:
            mode = stat.S_IMODE(self.file.stat().st_mode)
            stored_hash = self.file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            raise PasswordRefused("no password is set: set one with finrl-pod dashboard set-password") from None
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordRefused(f"cannot read the password in {self.file}: {error}") from None
        if mode & ~MODE:
            raise PasswordRefused(f"{self.file} is accessible by others (mode {mode:o}): chmod 600 it")
        try:
            return len(text) <= MAX_LENGTH and _hasher().verify(stored_hash, text)
        except VerifyMismatchError:
            return False
        except (InvalidHashError, VerificationError):
            raise PasswordRefused(
                f"{self.file} is not a password hash: set a password with finrl-pod dashboard set-password"
            ) from None


class PasswordGuard:
    """Checks passwords with a rate limit for each visitor and a ceiling for all; share one instance per process.

    clock: monotonic seconds.
    """

    def __init__(self, password: Password, clock: Callable[[], float] = time.monotonic) -> None:
        self._password = password
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: list[tuple[float, str]] = []  # time and visitor of the wrong passwords of the last hour

    def check(self, text: str, address: str) -> None:
        """Raises PasswordRefused unless `text` is the password. A try during the wait is refused unchecked.

        address: IP address of the visitor; addresses of one IPv6 network (64 bits) count as one visitor.
        """
        visitor = _network(address)
        with self._lock:
            now = self._clock()
            self._wrong = [entry for entry in self._wrong if entry[0] > now - WINDOW]
            times = [at for at, name in self._wrong if name == visitor]
            if times and (left := times[-1] + _wait(len(times)) - now) > 0:
                raise PasswordRefused(f"too soon after a wrong password: wait {left:.0f} s")
            if len(self._wrong) >= MAX_WRONG:
                left = self._wrong[-MAX_WRONG][0] + WINDOW - now
                raise PasswordRefused(f"too many wrong passwords from all addresses: wait {left:.0f} s")
            if self._password.matches(text):
                self._wrong = [entry for entry in self._wrong if entry[1] != visitor]
                return
            self._wrong.append((now, visitor))
            raise PasswordRefused(f"wrong password: try again in {_wait(len(times) + 1):.0f} s")


def _wait(wrong: int) -> float:
    """Seconds to wait after so many wrong passwords."""
    return min(FIRST_WAIT * 2.0 ** min(wrong - 1, 30), MAX_WAIT)


def _network(address: str) -> str:
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((number, 64), strict=False)) if number.version == 6 else str(number)


def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()  # Argon2id with the low-memory parameters of RFC 9106


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address. Raises ValueError if it is not an IP address or localhost."""
    return address == "localhost" or ipaddress.ip_address(address).is_loopback

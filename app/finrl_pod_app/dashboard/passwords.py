"""The one password of the dashboard: kept as an Argon2id hash in a file that its owner alone may read.

Argon2 (RFC 9106) takes tens of milliseconds and 64 MiB a guess; the comparison of hashes takes constant time. After a
wrong password everybody waits, the longer the more there were, so that guesses from many sessions gain nothing.
"""

from __future__ import annotations

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
SHORTEST, LONGEST = 8, 256  # characters; a longer text would only be work
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds after the first wrong password, doubled by each further one


class PasswordRefused(InputError):
    """Wrong, or too soon after a wrong one, or none is set."""


class Password:
    """The password in `file`, by default below the user's folder of finrl_pod."""

    def __init__(self, file: Path | None = None) -> None:
        if file is None:
            from finrl_pod.promotion.trial_registry import home

            file = home() / FILE
        self.file = file

    @property
    def is_set(self) -> bool:
        """Whether there is one."""
        return self.file.is_file()

    def set(self, text: str) -> None:
        """Take a new one. Raises InputError for a short or endless one, SetupError where it cannot be kept."""
        if not SHORTEST <= len(text) <= LONGEST:
            raise InputError(
                f"a password must have {SHORTEST} to {LONGEST} characters, this one has {len(text)}: choose another"
            )
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, _hasher().hash(text).encode() + b"\n", MODE)
        except OSError as error:
            raise SetupError(
                f"cannot keep the password in {self.file}: {error.strerror}; set FINRL_POD_HOME to a folder of your own"
            ) from None

    def matches(self, text: str) -> bool:
        """Whether it is this one. Raises PasswordRefused where none is set or others may read or change the file."""
        from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

        try:
            mode = stat.S_IMODE(self.file.stat().st_mode)
            kept = self.file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            raise PasswordRefused("no password is set yet: set one with finrl-pod dashboard set-password") from None
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordRefused(f"the password in {self.file} cannot be read: {error}") from None
        if mode & ~MODE:
            raise PasswordRefused(f"{self.file} may be read or changed by others (mode {mode:o}): chmod 600 it")
        try:
            return len(text) <= LONGEST and _hasher().verify(kept, text)
        except VerifyMismatchError:
            return False
        except (InvalidHashError, VerificationError):
            raise PasswordRefused(
                f"{self.file} holds no password: set one anew with finrl-pod dashboard set-password"
            ) from None


class Guard:
    """Checks passwords one after the other, with a wait for all after a wrong one. One a process, shared by sessions.

    clock: seconds that only go forward.
    """

    def __init__(self, password: Password, clock: Callable[[], float] = time.monotonic) -> None:
        self._password = password
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong = 0
        self._until = float("-inf")

    def check(self, text: str) -> None:
        """Raises PasswordRefused unless it is the password. A try that comes too soon is not looked at."""
        with self._lock:
            left = self._until - self._clock()
            if left > 0:
                raise PasswordRefused(f"too soon after a wrong password: wait {left:.0f} s")
            if self._password.matches(text):
                self._wrong = 0
                return
            wait = min(FIRST_WAIT * 2.0 ** min(self._wrong, 30), LONGEST_WAIT)
            self._wrong += 1
            self._until = self._clock() + wait
            raise PasswordRefused(f"wrong password: the next try is taken in {wait:.0f} s")


def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()  # Argon2id with RFC 9106's parameters for little memory

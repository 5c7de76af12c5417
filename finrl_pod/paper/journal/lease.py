"""One daemon a journal: a lock that the operating system lets go when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType

from finrl_pod.errors import JournalError


class Lease:
    """Held from entering to leaving. Raises JournalError when another process holds it."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + ".lock")

    def __enter__(self) -> Lease:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise JournalError(
                f"the journal is in use by {holder}: one daemon a journal; end that one, or name another journal"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

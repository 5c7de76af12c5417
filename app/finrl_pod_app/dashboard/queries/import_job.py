"""The import of one uploaded file in the background: waiting, its result, and its cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import DataError

if TYPE_CHECKING:
    from finrl_pod.types import Panel


class ImportJob:
    """Reads an uploaded file in a bounded child process, started when it is created.

    key: identifies file and options. name: of the file, as the browser reported it.
    """

    def __init__(self, key: tuple[Any, ...], name: str, content: bytes, options: Mapping[str, Any]) -> None:
        self.key, self.name = key, name
        self._started = time.monotonic()
        self._cancelled = threading.Event()
        self._future: Future[Panel] = Future()
        threading.Thread(target=self._read, args=(content, options), daemon=True).start()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def wait(self, seconds: float) -> bool:
        """Wait up to some seconds; returns whether the file is read, refused or cancelled."""
        return bool(wait([self._future], seconds).done)

    def result(self) -> Panel:
        """The panel, without waiting longer than `wait` did. Raises DataError for a file that cannot be read."""
        return self._future.result(0.0)

    def cancel(self) -> None:
        """Kill the child process; `result` then raises DataError."""
        self._cancelled.set()

    def _read(self, content: bytes, options: Mapping[str, Any]) -> None:
        from finrl_pod_app.dashboard.queries.prices import read_upload

        try:
            self._future.set_result(read_upload(self.name, content, self._cancelled.is_set, **options))
        except DataError as error:
            self._future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - the thread's errors belong to whoever asks for the result
            self._future.set_exception(DataError(f"the file cannot be read ({type(error).__name__})"))

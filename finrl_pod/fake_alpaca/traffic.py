"""Log of everything the server received and did, and the rate limit on requests."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TextIO

from finrl_pod.fake_alpaca.wire_format import timestamp

WINDOW_SECONDS = 60.0


class TrafficLog:
    """Numbered records in memory and, if a path is given, as JSON lines in a file. Request headers are not logged.

    Kinds of records: "request" (written with the response; `arrived` is the time of arrival), "order" (every event of
    an order), "account" (close, reset, split), "stream" (connected, fault, ...), "server" (started, stopped).
    """

    def __init__(self, path: Path | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self._file: TextIO | None = None if path is None else path.open("a", encoding="utf-8")

    def write(self, kind: str, moment: float, **detail: Any) -> None:
        """Append a record of a simulated time (UTC epoch seconds)."""
        record = {"n": len(self.records), "kind": kind, "at": timestamp(moment), "real": time.monotonic(), **detail}
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


class RequestCounter:
    """Allows at most `limit` requests in any 60 simulated seconds. Refused requests are not counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._accepted: deque[float] = deque()

    def take(self, moment: float) -> bool:
        """Count a request at a time (UTC epoch seconds). False, without counting it, if the limit is reached."""
        while self._accepted and self._accepted[0] <= moment - WINDOW_SECONDS:
            self._accepted.popleft()
        if len(self._accepted) >= self.limit:
            return False
        self._accepted.append(moment)
        return True

    def headers(self, moment: float) -> dict[str, str]:
        """Date and rate-limit headers of a response. Reset: epoch seconds at which the oldest request expires."""
        reset = self._accepted[0] + WINDOW_SECONDS if self._accepted else moment
        return {
            "X-RateLimit-Limit": str(self.limit),
            "X-RateLimit-Remaining": str(self.limit - len(self._accepted)),
            "X-RateLimit-Reset": str(math.ceil(reset)),
            "Date": format_datetime(datetime.fromtimestamp(moment, UTC), usegmt=True),
        }

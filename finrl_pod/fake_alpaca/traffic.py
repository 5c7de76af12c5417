"""What the server saw and did: the log that an independent reader judges a client by, and the count of requests."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TextIO

from finrl_pod.fake_alpaca.sessions import stamp

MINUTE = 60.0


class TrafficLog:
    """Numbered records in memory, and as JSON lines in a file where a path is given. Headers, and so keys, never enter.

    Kinds: "request" (written when it is answered, `arrived` says when it came), "order" (every event of an order),
    "account" (reset, split), "stream" (connected, refused, sent, lost, ...), "server" (started, stopped).
    """

    def __init__(self, path: Path | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self._file: TextIO | None = None if path is None else path.open("a", encoding="utf-8")

    def write(self, kind: str, moment: float, **detail: Any) -> None:
        record = {"n": len(self.records), "kind": kind, "at": stamp(moment), "real": time.monotonic(), **detail}
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class RequestCount:
    """No more than `limit` requests in any sixty seconds; one that is refused is not counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: deque[float] = deque()

    def take(self, moment: float) -> bool:
        """Count a request at a moment; False when the limit is spent."""
        while self._taken and self._taken[0] <= moment - MINUTE:
            self._taken.popleft()
        if len(self._taken) >= self.limit:
            return False
        self._taken.append(moment)
        return True

    def headers(self, moment: float) -> dict[str, str]:
        """What every answer says of time and limit. Reset: epoch seconds, when the oldest request is a minute old."""
        reset = self._taken[0] + MINUTE if self._taken else moment
        return {
            "X-RateLimit-Limit": str(self.limit),
            "X-RateLimit-Remaining": str(self.limit - len(self._taken)),
            "X-RateLimit-Reset": str(math.ceil(reset)),
            "Date": format_datetime(datetime.fromtimestamp(moment, UTC), usegmt=True),
        }

"""Structured logs: one JSON object per line on standard error, with secrets masked."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

SECRET_VARIABLES = (
    "APCA_API_KEY_ID",
    "APCA_API_SECRET_KEY",
    "FINRL_POD_WEBHOOK_SECRET",
    "FINRL_POD_ALERT_URLS",
    "FINRL_POD_PING_URL",
    "FINRL_POD_TELEGRAM_TOKEN",
)
MASK = "***"
_MIN_LENGTH = 4  # a shorter value would mask ordinary text


def secrets(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the secret values of the environment, longest first; alert URLs separately."""
    parts = (part for name in SECRET_VARIABLES for part in environment.get(name, "").split())
    values = {part for part in parts if len(part) >= _MIN_LENGTH}
    return tuple(sorted(values, key=len, reverse=True))


def masked(value: Any, hidden: tuple[str, ...]) -> Any:
    """Return the value with every secret replaced by `MASK`, also inside lists and mappings."""
    if isinstance(value, str):
        for secret in hidden:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {key: masked(item, hidden) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, hidden) for item in value]
    return value


class _StandardError:
    """Standard error that drops text if it is full or closed, so that logging never ends the daemon."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def open_log(environment: Mapping[str, str] = os.environ) -> Any:
    """Return the daemon's logger, which never raises. Logs of other libraries are dropped: they may hold secrets."""
    import structlog

    hidden = secrets(environment)

    def mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {key: masked(value, hidden) for key, value in event.items()}

    return structlog.wrap_logger(
        structlog.PrintLogger(_StandardError()),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            mask,
            structlog.processors.JSONRenderer(sort_keys=True, default=str),
        ],
    )

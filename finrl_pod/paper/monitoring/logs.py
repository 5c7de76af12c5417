"""Structured logs: one JSON object a line on standard error, secrets masked wherever they stand."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

SECRET_VARIABLES = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY", "FINRL_POD_WEBHOOK_SECRET", "FINRL_POD_ALERT_URLS")
MASK = "***"
_SHORTEST = 4  # a shorter value would mask half of all text


def secrets(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Values that no line may show, the longest first; addresses of notifiers one by one."""
    values = {part for name in SECRET_VARIABLES for part in environment.get(name, "").split() if len(part) >= _SHORTEST}
    return tuple(sorted(values, key=len, reverse=True))


def masked(value: Any, hidden: tuple[str, ...]) -> Any:
    """The value with every secret in it struck out, also inside lists and mappings."""
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
    """Standard error, which may be full or gone: what it does not take is dropped, and the daemon lives on."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def open_log(environment: Mapping[str, str] = os.environ) -> Any:
    """A logger of the daemon, which never raises. What other libraries log is not shown: it might hold a secret."""
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

"""Structured logs: one JSON object per line on standard error, with secrets masked."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finrl_pod.masking import environment_mask

if TYPE_CHECKING:
    from structlog.typing import EventDict


class _StandardError:
    """Standard error that drops text if it is full or closed, so that logging never ends the daemon."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def open_log(environment: Mapping[str, str] = os.environ) -> Any:
    """Return the logger of the daemon. It never raises. Logs of other libraries are dropped: they may hold secrets."""
    import structlog

    secrets = environment_mask(environment)
    logging.getLogger().addHandler(logging.NullHandler())  # else warnings of other libraries reach standard error

    def mask(_: Any, __: str, event: EventDict) -> EventDict:
        return {key: secrets.value(value) for key, value in event.items()}

    return structlog.wrap_logger(
        structlog.PrintLogger(_StandardError()),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            mask,
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
    )

"""Retries with exponential back-off for network sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """Retry policy of a source.

    attempts: calls in total. first_wait: seconds before the second call, doubled with jitter up to longest_wait.
    timeout: seconds per request.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 8.0
    timeout: float = 15.0

    def call(self, function: Callable[[], Result], transient: Callable[[BaseException], bool]) -> Result:
        """Call `function` until it succeeds; raises its error if not `transient`, or after the last attempt."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait),
            retry=retry_if_exception(transient),
            reraise=True,
        )
        return retrying(function)

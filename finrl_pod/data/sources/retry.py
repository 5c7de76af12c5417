"""How often, how long and with what back-off a source is asked again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """attempts: calls in all. first_wait: seconds before the second call, doubled with jitter up to longest_wait.

    timeout: seconds a single request may take.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 8.0
    timeout: float = 15.0

    def call(self, function: Callable[[], Result], transient: Callable[[BaseException], bool]) -> Result:
        """Call until it succeeds, fails for good (not `transient`), or the attempts are spent: then the last error."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait),
            retry=retry_if_exception(transient),
            reraise=True,
        )
        return retrying(function)

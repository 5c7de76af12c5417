"""Wall-clock seconds of the parts of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from finrl_pod.tournament.tournament import Outcome
from finrl_pod_app.report.records import Timing

Part = Literal["preparation", "training", "backtests", "audit", "report"]


class RunClock:
    """Measures the parts of a run one after another. A run begins with its preparation; its training scores agents."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """clock: seconds, from any origin."""
        self._clock = clock
        self._seconds: defaultdict[Part, float] = defaultdict(float)
        self._part: Part = "preparation"
        self._begin = clock()

    def enter(self, part: Part) -> None:
        """End the current part and begin another, or go on with it."""
        now = self._clock()
        self._seconds[self._part] += now - self._begin
        self._part = part
        self._begin = now

    def timing(self, *outcomes: Outcome) -> Timing:
        """Seconds of the parts so far, with one or more tournaments in the training.

        Training in earlier processes of the run counts, their other parts do not.
        """
        self.enter(self._part)
        seconds = self._seconds
        samples = sum(outcome.samples for outcome in outcomes)
        scoring = sum(outcome.scoring_seconds for outcome in outcomes)
        earlier = sum(outcome.earlier_seconds for outcome in outcomes)
        return Timing(
            samples=samples,
            samples_per_second=samples / max(sum(outcome.training_seconds for outcome in outcomes), 1e-9),
            preparation_seconds=seconds["preparation"],
            training_seconds=seconds["training"] + earlier - scoring,
            scoring_seconds=scoring,
            backtests_seconds=seconds["backtests"],
            audit_seconds=seconds["audit"],
            report_seconds=seconds["report"],
            total_seconds=sum(seconds.values()) + earlier,
        )

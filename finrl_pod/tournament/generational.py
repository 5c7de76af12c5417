"""The generational scheduler (FinRL-Podracer): all groups train, then all slots are ranked and refilled.

A generation is the unit of work: it starts from what the previous one saved, uses random streams keyed by its number,
and counts only once it is completely written. A run that was killed and resumed therefore equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod.tournament.assignment import AssignmentResult
from finrl_pod.tournament.run_state import Pending, RunState
from finrl_pod.tournament.scheduler import Scheduler


class GenerationalScheduler(Scheduler):
    """Waits for all groups of a generation before the next one begins."""

    _number = 0
    _awaited = 0
    _results: tuple[AssignmentResult, ...] = ()

    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """All groups in the generation after the last saved one; none after the last generation."""
        number, config = state.generation + 1, self.config
        if number >= config.tournament.generations:
            return ()
        cohorts = [
            [group for group in state.groups if group.cohort == cohort] for cohort in range(1 + len(config.cohorts))
        ]
        return tuple(pending for groups in cohorts for pending in self.generate(state, groups, number))

    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:  # noqa: ARG002
        """Wait for the results of one generation."""
        self._results, self._awaited = (), len(pending)
        self._number = pending[0].number if pending else 0

    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """Keep a result until the generation is complete; then rank it and begin the next one."""
        self._results += (result,)
        if len(self._results) < self._awaited:
            return state
        state = self.accept(state, sorted(self._results, key=lambda result: result.group))
        if not self.budget.is_spent and (pending := self.first_pending(state)):
            self.begin(state, pending)
            self.dispatcher.add(pending)
        return state

    def limit(self, rounds: int) -> float:
        """An equal share of what is left."""
        return self.budget.share(rounds)

    def stage(self, group: int) -> str:
        """The generation, and the algorithm if there are several."""
        algorithm = self.algorithm_of(group)
        named = f" ({algorithm})" if self.config.cohorts else ""
        return f"training generation {self._number + 1} of {self.config.tournament.generations}{named}"

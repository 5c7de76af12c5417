"""The asynchronous scheduler (ElegantRL-Podracer): no barrier between groups.

A group's results enter the leaderboard when they arrive, and its next assignment is generated at once from what is on
the leaderboard then. Groups that wait for a shard take turns, so that cohorts share the shards equally. A run has as
many assignments as a generational one; a fast group gets more of them than a slow one. An agent that has been trained
as long as `generations` assignments take is neither continued nor copied: its slot starts a new one.

Every assignment follows from the order in which results came. The same order gives the same run, see
`finrl_pod.tournament.executors.replay`.
"""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod.tournament.assignment import AssignmentResult
from finrl_pod.tournament.run_state import Pending, RunState
from finrl_pod.tournament.scheduler import Scheduler


class AsynchronousScheduler(Scheduler):
    """Gives a group its next assignment as soon as it has a result."""

    _made = 0  # assignments so far, those without a result included
    _total = 0

    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """What a saved run waited for; the first assignment of every group in a new one."""
        if state.generation >= 0:
            return state.pending
        return tuple(pending for group in state.groups for pending in self.generate(state, [group], 0))

    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:
        """Count the assignments that have been made."""
        self._total = len(state.groups) * self.config.tournament.generations
        numbers = {score.slot: score.generation for score in state.current}
        numbers |= {slot: waiting.number for waiting in pending for slot in waiting.group.slots}
        self._made = sum(1 + numbers[group.slots[0]] for group in state.groups)

    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """Rank a result at once and generate its group's next assignment, unless all have been made."""
        group, number = state.groups[result.group], result.number + 1

        def follow(after: RunState) -> Sequence[Pending]:
            if self.budget.is_spent:
                self.dispatcher.clear()
            elif self._made < self._total:
                self._made += 1
                self.dispatcher.add(self.generate(after, [group], number, self._max_age))
            return self.dispatcher.pending

        return self.accept(state, [result], follow)

    def limit(self, rounds: int) -> float:  # noqa: ARG002
        """Wall-clock limit of an assignment: the remaining time of the run."""
        return self.budget.share(1)

    def stage(self, group: int) -> str:
        """How many of the assignments have been made, and the algorithm if there are several."""
        named = f" ({self.algorithm_of(group)})" if self.config.cohorts else ""
        return f"training assignment {self._made} of {self._total}{named}"

    @property
    def _max_age(self) -> int:
        settings = self.config.tournament
        return settings.generations * settings.samples_per_generation

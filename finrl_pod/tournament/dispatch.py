"""Hands assignments to free shards and collects one result of each, whatever happens to the shards."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from finrl_pod import random
from finrl_pod.errors import RunError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import Assignment, AssignmentResult, ReplaySegment
from finrl_pod.tournament.event_log import EventLog
from finrl_pod.tournament.executor import (
    Event,
    Executor,
    Finished,
    Lost,
    NodeJoined,
    NodeLost,
    ReportSamples,
    last_line,
)
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import Pending

MAX_LOSSES = 5  # per assignment: after that the assignment itself is at fault
# Number of rounds that empty the queue -> seconds for the next assignment.
Limit = Callable[[int], float]
Results = Mapping[tuple[int, int], AssignmentResult]  # by group and number, in the order of arrival


class Dispatcher:
    """A queue of assignments in front of an executor."""

    def __init__(
        self, config: RunConfig, run: RunDirectory, executor: Executor, log: EventLog, report: ReportSamples
    ) -> None:
        self._config = config
        self._run = run
        self._executor = executor
        self._log = log
        self._report = report
        self._queue: deque[Pending] = deque()
        self._running: dict[tuple[int, int], Pending] = {}
        self._losses: Counter[tuple[int, int]] = Counter()
        self._results: deque[tuple[Pending, AssignmentResult]] = deque()
        self._is_exhausted = False
        self._samples = run.samples_per_generation(config)

    def saved_results(self, pending: Sequence[Pending]) -> Results:
        """Results of assignments that an earlier process of the run saved and logged."""
        assignments_by_slot = {(slot, waiting.number): waiting for waiting in pending for slot in waiting.group.slots}
        results: dict[tuple[int, int], AssignmentResult] = {}
        for key in self._log.results:
            waiting = assignments_by_slot.get(key)
            if waiting is None or waiting.key in results:
                continue
            result = self._run.result(*waiting.key)
            if result is not None and tuple(score.slot for score in result.scores) == waiting.group.slots:
                results[waiting.key] = result
        return results

    def add(self, pending: Sequence[Pending], saved_results: Results | None = None) -> None:
        """Queue assignments. saved_results: results of some of them; no shard trains those."""
        saved_results = saved_results or {}
        assignments = {waiting.key: waiting for waiting in pending}
        self._results.extend((assignments[key], result) for key, result in saved_results.items())
        self._queue.extend(waiting for waiting in pending if waiting.key not in saved_results)

    def clear(self) -> None:
        """Forget assignments that no shard has taken yet."""
        self._queue = deque(pending for pending in self._queue if pending.key in self._losses)

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Assignments whose result was not handed out: finished ones, those that shards train, those that wait."""
        return (*(pending for pending, _ in self._results), *self._running.values(), *self._queue)

    def next_result(self, limit: Limit) -> AssignmentResult | None:
        """The next result, None if nothing is pending or the executor is exhausted.

        Raises RunError for an assignment that lost its shard again and again, and what the executor raises.
        """
        while not self._results and self.pending and not self._is_exhausted:
            while self._queue and self._executor.free:
                rounds = -(-len(self._queue) // max(self._executor.shards, 1))
                self._submit(self._queue.popleft(), limit(rounds))
            for event in self._executor.wait(self._report):
                self._handle(event)
        return self._results.popleft()[1] if self._results else None

    def _submit(self, pending: Pending, seconds: float) -> None:
        config = self._config
        group = pending.group
        starts = {
            slot_init.parent for slot_init in pending.slot_inits if slot_init.parent and slot_init.kind != "reinit"
        }
        assignment = Assignment(
            group=group,
            number=pending.number,
            slot_inits=pending.slot_inits,
            parents={agent: self._run.snapshot(agent) for agent in sorted(starts)},
            replay=load_segments(self._run, group.number, pending.number - 1),
            seed=random.key(config.seed, pending.number, "generation"),
            samples=self._samples[group.cohort],
            seconds=seconds,
        )
        self._running[pending.key] = pending
        self._log.assignment(pending)
        self._executor.submit(assignment)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Finished):
            pending = self._running.pop(event.result.key, None)
            if pending is not None:  # a late result of a lost shard counts once
                self._run.save_result(event.result)
                self._log.result(event.result, event.node)
                self._results.append((pending, event.result))
        elif isinstance(event, Lost):
            self._requeue(event.key, event.reason)
        elif isinstance(event, NodeJoined):
            self._log.node_joined(event.node, event.pid)
        elif isinstance(event, NodeLost):
            self._log.node_lost(event.node)
        else:
            self._is_exhausted = True

    def _requeue(self, key: tuple[int, int], reason: str) -> None:
        """Train a lost assignment again, before all others."""
        pending = self._running.pop(key, None)
        if pending is None:
            return
        self._losses[key] += 1
        if self._losses[key] > MAX_LOSSES:
            raise RunError(
                f"assignment {pending.number} of slots {', '.join(map(str, pending.group.slots))} has lost its shard "
                f"{self._losses[key]} times: {last_line(reason)}; continue with --resume once that is solved"
            )
        self._queue.appendleft(pending)


def load_segments(run: RunDirectory, group: int, newest: int) -> tuple[ReplaySegment, ...]:
    """Segments of a group up to the one of assignment `newest`, oldest first, without gaps; none without a buffer."""
    segments: list[ReplaySegment] = []
    for number in range(newest, -1, -1):
        items = run.replay(number, group)
        if items is None:
            break
        segments.insert(0, ReplaySegment(number, items))
    return tuple(segments)

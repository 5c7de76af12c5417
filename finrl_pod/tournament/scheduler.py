"""The schedulers: which assignments a run consists of, and when results are ranked.

`GenerationalScheduler` (FinRL-Podracer): all groups train, then all slots are ranked and refilled. A generation starts
from what the previous one saved, uses random streams keyed by its number, and counts only once it is completely
written. A run that was killed and resumed therefore equals an uninterrupted one. Results are saved as they arrive: a
killed process trains no finished assignment again.

`AsynchronousScheduler` (ElegantRL-Podracer): no barrier between groups. Results enter the leaderboard when they arrive,
and the next assignment of the group is generated at once from that leaderboard. Groups that wait for a shard take
turns, so cohorts share the shards equally. A run has as many assignments as a generational one; a fast group gets more
of them than a slow one. The same order of results gives the same run (`finrl_pod.tournament.executor.ReplayExecutor`).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import AssignmentResult, Group
from finrl_pod.tournament.dispatch import Dispatcher
from finrl_pod.tournament.event_log import EventLog
from finrl_pod.tournament.executor import Executor
from finrl_pod.tournament.learning_curves import LearningCurves
from finrl_pod.tournament.next_generation import initial_slots, next_slots
from finrl_pod.tournament.progress import Budget, Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import Pending, RunState
from finrl_pod.types import Floats, Score

# Called with results before they are saved: a number that no other
# results of the run have, scores of the pods, validation equity [T, pods].
Record = Callable[[int, Sequence[Score], Floats], None]
Follow = Callable[[RunState], Sequence[Pending]]


class Scheduler(ABC):
    """Decides which assignments a run consists of. Subclasses decide when a group gets its next one.

    `start`, then `receive` with every result that the dispatcher gives. shares_time: whether the rounds of assignments
    share the remaining time equally; otherwise each may use all of it.
    """

    shares_time = False

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        executor: Executor,
        report: ProgressCallback,
        record: Record,
        clock: Callable[[], float],
        seconds_before: float,
    ) -> None:
        """clock: seconds for budgets. seconds_before: seconds of training in earlier processes."""
        self.config = config
        self.run_directory = run
        self.record = record
        self.budget = Budget(config.tournament, clock, seconds_before)
        self.log = EventLog(run.path / "events.jsonl", time.monotonic)
        self.dispatcher = Dispatcher(config, run, executor, self.log, self._report_samples)
        self.shards = executor.shards
        self._samples = run.samples_per_generation(config)
        self._report = report
        self._start_time: float | None = None  # end of the first iteration: it compiles kernels
        self._state: RunState | None = None
        self._fresh_samples = 0  # of this process, since then
        self._sample_count = 0  # since the last accepted result

    @abstractmethod
    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """Assignments that a run starts or continues with."""

    @abstractmethod
    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """State after a result; what follows from it is put into the queue."""

    def limit(self, rounds: int) -> float:
        """Seconds for the next assignment. rounds: number of rounds that empty the queue."""
        return self.budget.share(rounds if self.shares_time else 1)

    @abstractmethod
    def stage(self, group: int) -> str:
        """Status text while a group trains."""

    def start(self, state: RunState) -> None:
        """Begin or continue the event log, and queue the first assignments unless the budget is spent."""
        self._state = state
        pending = self.first_pending(state)
        saved_results = self.dispatcher.saved_results(pending)
        if pending:  # a finished run stays as it is
            self.run_directory.forget_results(saved_results.keys())
            repeated = [waiting for waiting in pending if waiting.key not in saved_results]
            self.log.start(self.config.sha256, state.groups, self.shards, repeated)
        if state.generation < 0 or not self.budget.is_spent:
            self.begin(state, pending)
            self._sample_count = sum(result.samples for result in saved_results.values())
            self.dispatcher.add(pending, saved_results)

    @abstractmethod
    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:
        """Count what a run starts or continues with."""

    def algorithm_suffix(self, group: int) -> str:
        """The algorithm of a group in brackets, if there are several."""
        assert self._state is not None
        agents = (self.config.agent, *self.config.cohorts)
        return f" ({agents[self._state.groups[group].cohort].algorithm})" if len(agents) > 1 else ""

    def generate(
        self, state: RunState, groups: Sequence[Group], number: int, max_age: float = math.inf
    ) -> list[Pending]:
        """Assignments with this number for groups of one cohort; agents are copied within it, where weights fit.

        max_age: samples from which agents are neither continued nor copied.
        """
        config, settings, cohort = self.config, self.config.tournament, groups[0].cohort
        agent = (config.agent, *config.cohorts)[cohort]
        slots = range(cohort, settings.pods, 1 + len(config.cohorts))
        if number == 0:
            slot_inits = initial_slots(agent, slots, config.seed, search=settings.search)
        else:
            current = [score for score in state.current if score.slot in slots]
            scores = tuple(score for score in state.leaderboard.scores if score.slot in slots)
            board = replace(state.leaderboard, scores=scores)
            history = {agent: past for agent, past in state.history.items() if past.slot in slots}
            generations = {score.generation for score in (*board.scores, *current)}
            returns = self.run_directory.validation_returns(generations)
            slot_inits = next_slots(agent, settings, config.seed, number, board, current, history, returns, max_age)
        return [
            Pending(group, number, tuple(slot_init for slot_init in slot_inits if slot_init.slot in group.slots))
            for group in groups
        ]

    def accept(self, state: RunState, results: Sequence[AssignmentResult], follow: Follow = lambda _: ()) -> RunState:
        """Record and save results of one number; returns the state after them.

        follow: assignments without a result after these, from the state that has them. It is called when the files
        that assignments start from are written, and before the state is.
        """
        number = results[0].number
        groups = len(state.groups)
        run = self.run_directory
        seconds = self.budget.seconds
        state, scores = state.with_results(results, seconds)
        serial = number if len(results) == groups else number * groups + results[0].group
        self.record(serial, scores, np.concatenate([result.equity for result in results], 1))
        for result in results:
            if result.replay:
                run.save_replay(number, result.group, result.replay)
        run.save_validation(number, {name: x for result in results for name, x in result.returns.items()})
        state = replace(state, pending=tuple(follow(state)))
        curves_of_groups = [
            LearningCurves(tuple(score.slot for score in result.scores), tuple(result.rows)) for result in results
        ]
        agents_by_slot = tuple(sorted(scores, key=lambda score: score.slot))
        curves = replace(LearningCurves.joined(curves_of_groups), agents=agents_by_slot)
        agents = [agent for result in results for agent in result.agents]
        run.save_generation(number, agents, state.agents_needed, curves, state)
        for result in results:  # a resumed run cannot need older items
            run.forget_replay(result.replay_first - 1, result.group)
        run.forget_results([waiting.key for waiting in self.dispatcher.pending])
        self._state = state
        self._sample_count = 0
        return state

    def _report_samples(self, group: int, samples: int) -> None:
        assert self._state is not None
        state = self._state
        settings = self.config.tournament
        budget = self._samples[state.groups[group].cohort]
        now = time.perf_counter()
        if self._start_time is None:
            self._start_time = now
        else:
            self._fresh_samples += samples
        self._sample_count += samples
        samples_per_pod = samples // len(state.groups[group].slots)
        total = -(-budget // samples_per_pod) * samples_per_pod * settings.pods * settings.generations
        rate = self._fresh_samples / max(now - self._start_time, 1e-9)
        sample_count = state.samples + self._sample_count
        best = state.leaderboard.best
        self._report(
            Progress(
                stage=self.stage(group),
                samples=min(sample_count, total),
                total_samples=total,
                samples_per_second=rate,
                best=None if best is None else best.score,
                seconds_left=max(total - sample_count, 0) / rate if rate else None,
            )
        )


class GenerationalScheduler(Scheduler):
    """Waits for all groups of a generation before the next one begins."""

    shares_time = True
    _number = 0
    _awaited_count = 0
    _results: tuple[AssignmentResult, ...] = ()

    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """All groups in the generation after the last saved one; none after the last generation."""
        number = state.generation + 1
        config = self.config
        if number >= config.tournament.generations:
            return ()
        cohorts = [
            [group for group in state.groups if group.cohort == cohort] for cohort in range(1 + len(config.cohorts))
        ]
        return tuple(pending for groups in cohorts for pending in self.generate(state, groups, number))

    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:  # noqa: ARG002
        """Wait for the results of one generation."""
        self._results = ()
        self._awaited_count = len(pending)
        self._number = pending[0].number if pending else 0

    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """Keep a result until the generation is complete; then rank it and begin the next one."""
        self._results += (result,)
        if len(self._results) < self._awaited_count:
            return state
        state = self.accept(state, sorted(self._results, key=lambda result: result.group))
        if not self.budget.is_spent and (pending := self.first_pending(state)):
            self.begin(state, pending)
            self.dispatcher.add(pending)
        return state

    def stage(self, group: int) -> str:
        generations = self.config.tournament.generations
        return f"training generation {self._number + 1} of {generations}{self.algorithm_suffix(group)}"


class AsynchronousScheduler(Scheduler):
    """Gives a group its next assignment as soon as it has a result."""

    _assignment_count = 0  # assignments so far, those without a result included
    _total = 0

    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """Pending assignments of a saved run; the first assignment of every group in a new run."""
        if state.generation >= 0:
            return state.pending
        return tuple(pending for group in state.groups for pending in self.generate(state, [group], 0))

    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:
        self._total = len(state.groups) * self.config.tournament.generations
        numbers = {score.slot: score.generation for score in state.current}
        numbers |= {slot: waiting.number for waiting in pending for slot in waiting.group.slots}
        self._assignment_count = sum(1 + numbers[group.slots[0]] for group in state.groups)

    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """Rank a result at once and generate the next assignment of the group, unless all have been made."""
        group = state.groups[result.group]
        number = result.number + 1
        settings = self.config.tournament

        def follow(next_state: RunState) -> Sequence[Pending]:
            if self.budget.is_spent:
                self.dispatcher.clear()
            elif self._assignment_count < self._total:
                self._assignment_count += 1
                max_age = settings.generations * settings.samples_per_generation
                self.dispatcher.add(self.generate(next_state, [group], number, max_age))
            return self.dispatcher.pending

        return self.accept(state, [result], follow)

    def stage(self, group: int) -> str:
        return f"training assignment {self._assignment_count} of {self._total}{self.algorithm_suffix(group)}"

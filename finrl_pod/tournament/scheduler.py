"""What both schedulers share: initial states of pods, counting and saving of results, progress."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np

from finrl_pod.files import to_plain
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import AssignmentResult, Group, learning_curves
from finrl_pod.tournament.budget import Budget
from finrl_pod.tournament.dispatch import Dispatcher
from finrl_pod.tournament.event_log import EventLog
from finrl_pod.tournament.executor import Executor
from finrl_pod.tournament.next_generation import SlotInit, initial_slots, next_slots
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import Pending, RunState
from finrl_pod.types import Floats, Score

# Called with results before they are saved: a number that no other
# results of the run have, scores of the pods, validation equity [T, pods].
Record = Callable[[int, Sequence[Score], Floats], None]
Follow = Callable[[RunState], Sequence[Pending]]


class Scheduler(ABC):
    """Decides which assignments a run consists of. Subclasses decide when a group gets its next one.

    `start`, then `receive` with every result that the dispatcher gives.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        executor: Executor,
        report: ProgressCallback,
        record: Record,
        clock: Callable[[], float],
        spent: float,
    ) -> None:
        """clock: seconds for budgets. spent: seconds of training before this process."""
        self.config, self.run_directory, self.record = config, run, record
        self.budget = Budget(config.tournament, clock, spent)
        self.log = EventLog(run.path / "events.jsonl", time.monotonic)
        self.dispatcher = Dispatcher(config, run, executor, self.log, self._report_samples)
        self.shards = executor.shards
        self._samples = run.samples_per_generation(config)
        self._report = report
        self._began: float | None = None  # end of the first iteration, which compiles kernels
        self._state: RunState | None = None
        self._fresh_samples = 0  # of this process, since then
        self._taken = 0  # since the last accepted result

    @abstractmethod
    def first_pending(self, state: RunState) -> tuple[Pending, ...]:
        """Assignments that a run starts or continues with."""

    @abstractmethod
    def receive(self, state: RunState, result: AssignmentResult) -> RunState:
        """State after a result; what follows from it is put into the queue."""

    @abstractmethod
    def limit(self, rounds: int) -> float:
        """Seconds for the next assignment. rounds: in which free shards take all assignments of the queue."""

    @abstractmethod
    def stage(self, group: int) -> str:
        """What is being done while a group trains, for a person."""

    def start(self, state: RunState) -> None:
        """Begin or continue the event log, and queue the first assignments unless the budget is spent."""
        self._state = state
        pending = self.first_pending(state)
        if pending:  # a finished run stays as it is
            self.log.start(self.config.sha256, state.groups, self.shards, pending)
        if state.generation < 0 or not self.budget.is_spent:
            self.begin(state, pending)
            self.dispatcher.add(pending)

    @abstractmethod
    def begin(self, state: RunState, pending: Sequence[Pending]) -> None:
        """Count what a run starts or continues with."""

    def algorithm_of(self, group: int) -> str:
        """Name of the algorithm of a group."""
        assert self._state is not None
        return (self.config.agent, *self.config.cohorts)[self._state.groups[group].cohort].algorithm

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
            board = state.leaderboard.of_slots(slots)
            history = {agent: past for agent, past in state.history.items() if past.slot in slots}
            generations = {score.generation for score in (*board.scores, *current)}
            returns = self.run_directory.validation_returns(generations)
            slot_inits = next_slots(
                agent,
                settings,
                config.seed,
                number,
                board,
                current,
                history,
                returns,
                max_age,
            )
        return [Pending(group, number, _of_slots(slot_inits, group.slots)) for group in groups]

    def accept(self, state: RunState, results: Sequence[AssignmentResult], follow: Follow = lambda _: ()) -> RunState:
        """Record and save results of one number; returns the state after them.

        follow: assignments without a result after these, from the state that has them. It is called when the files
        that assignments start from are written, and before the state is.
        """
        number, groups = results[0].number, len(state.groups)
        run, seconds = self.run_directory, self.budget.seconds
        state, scores = state.with_results(results, seconds)
        serial = number if len(results) == groups else number * groups + results[0].group
        self.record(serial, scores, np.concatenate([result.equity for result in results], 1))
        for result in results:
            if result.replay:
                run.save_replay(number, result.group, result.replay)
        run.save_validation(number, {name: x for result in results for name, x in result.returns.items()})
        state = replace(state, pending=tuple(follow(state)))
        curves = {
            **learning_curves(results),
            "agents": to_plain([asdict(score) for score in sorted(scores, key=_slot)]),
        }
        agents = [agent for result in results for agent in result.agents]
        run.save_generation(number, agents, state.agents_needed, curves, state.to_dict())
        for result in results:  # a resumed run cannot need older items
            run.forget_replay(result.replay_first - 1, result.group)
        self._state, self._taken = state, 0
        return state

    def _report_samples(self, group: int, samples: int) -> None:
        assert self._state is not None
        state, settings = self._state, self.config.tournament
        budget = self._samples[state.groups[group].cohort]
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        else:
            self._fresh_samples += samples
        self._taken += samples
        each = samples // len(state.groups[group].slots)
        total = -(-budget // each) * each * settings.pods * settings.generations
        rate = self._fresh_samples / max(now - self._began, 1e-9)
        done, best = state.samples + self._taken, state.leaderboard.best
        self._report(
            Progress(
                stage=self.stage(group),
                samples=min(done, total),
                total_samples=total,
                samples_per_second=rate,
                best=None if best is None else best.score,
                seconds_left=max(total - done, 0) / rate if rate else None,
            )
        )


def _of_slots(slot_inits: Sequence[SlotInit], slots: Sequence[int]) -> tuple[SlotInit, ...]:
    return tuple(slot_init for slot_init in slot_inits if slot_init.slot in slots)


def _slot(score: Score) -> int:
    return score.slot

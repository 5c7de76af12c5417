"""The tournament: pods trained side by side and ranked by validation score (population-based training).

`tournament.scheduler` decides when results are ranked (`generational`, `asynchronous`), an executor where pods train
(`executors`). Config and seed determine a generational run; an asynchronous one also depends on the order of results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finrl_pod.errors import RunError
from finrl_pod.settings.run import RunConfig, validate_tournament
from finrl_pod.tournament.assignment import Group, make_groups
from finrl_pod.tournament.asynchronous import AsynchronousScheduler
from finrl_pod.tournament.cohort import CohortTrainer, MakeEnv
from finrl_pod.tournament.executor import Executor
from finrl_pod.tournament.generational import GenerationalScheduler
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.local_executor import LocalExecutor
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import initial_state, restored_state
from finrl_pod.tournament.scheduler import Record
from finrl_pod.tournament.scoring import Scorer


@dataclass(frozen=True)
class Outcome:
    """leaderboard: the best. parents: id -> parent's id of every agent made. samples: environment steps, all pods."""

    leaderboard: Leaderboard
    parents: Mapping[str, str | None]
    samples: int
    train_seconds: float


class Tournament:
    """Trains pods and keeps a leaderboard, in a run directory."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        executor: Executor,
        report: ProgressCallback = lambda _: None,
        record: Record = lambda *_: None,
        groups: Sequence[Group] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """executor: where pods train; the caller closes it.

        record: registers trials; called again for results that are repeated after a kill. groups: of a new run,
        `make_groups` by default. clock: seconds, for `tournament.seconds`.
        """
        validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
        self.config, self.run_directory, self.executor = config, run, executor
        self.report, self.record, self.groups, self.clock = report, record, groups, clock

    @classmethod
    def local(
        cls,
        config: RunConfig,
        make_env: MakeEnv,
        scorer: Scorer,
        run: RunDirectory,
        data_sha256: str,
        report: ProgressCallback = lambda _: None,
        record: Record = lambda *_: None,
    ) -> Tournament:
        """A tournament whose pods train in this process.

        make_env: member ids -> training environments. scorer: measures the pods after every assignment.
        """
        executor = LocalExecutor(CohortTrainer(config, make_env, scorer, data_sha256))
        return cls(config, run, executor, report, record)

    def run(self) -> Outcome:
        """Train until nothing is left or a limit is reached, continuing from the run directory."""
        config, run, executor = self.config, self.run_directory, self.executor
        groups = make_groups(config, executor.shards) if self.groups is None else tuple(self.groups)
        state = restored_state(run, config.tournament, groups) or initial_state(config.tournament, groups)
        kind = GenerationalScheduler if config.tournament.scheduler == "generational" else AsynchronousScheduler
        scheduler = kind(config, run, executor, self.report, self.record, self.clock, state.train_seconds)
        scheduler.start(state)
        while (result := scheduler.dispatcher.next_result(scheduler.limit)) is not None:
            state = scheduler.receive(state, result)
        if not state.leaderboard.scores:
            raise RunError("all agents diverged: no validation score is a number; lower agent.learning_rate")
        return Outcome(state.leaderboard, state.parents, state.samples, state.train_seconds)

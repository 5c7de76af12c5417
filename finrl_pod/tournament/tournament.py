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
from finrl_pod.tournament.executor import Executor
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.run_state import initial_state
from finrl_pod.tournament.scheduler import AsynchronousScheduler, GenerationalScheduler, Record


@dataclass(frozen=True)
class Outcome:
    """Result of a tournament.

    parents: id -> id of the parent, for every agent. samples: environment steps of all pods. earlier_seconds: training
    and scoring in earlier processes of the run; they are part of the other two.
    """

    leaderboard: Leaderboard
    parents: Mapping[str, str | None]
    samples: int
    training_seconds: float
    scoring_seconds: float
    earlier_seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        return self.samples / max(self.training_seconds, 1e-9)


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
        """executor: trains the pods; the caller closes it.

        record: registers trials; called again for results that are repeated after a kill. groups: groups of a new run;
        default: `make_groups`. clock: seconds, for `tournament.seconds`.
        """
        validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
        self.config = config
        self.run_directory = run
        self.executor = executor
        self.report = report
        self.record = record
        self.groups = groups
        self.clock = clock

    def run(self) -> Outcome:
        """Train until nothing is left or a limit is reached, continuing from the run directory."""
        config = self.config
        run = self.run_directory
        executor = self.executor
        groups = make_groups(config, executor.shards) if self.groups is None else tuple(self.groups)
        state = run.state(groups) or initial_state(config.tournament, groups)
        kind = GenerationalScheduler if config.tournament.scheduler == "generational" else AsynchronousScheduler
        earlier_seconds = state.seconds
        scheduler = kind(config, run, executor, self.report, self.record, self.clock, earlier_seconds)
        scheduler.start(state)
        while (result := scheduler.dispatcher.next_result(scheduler.limit)) is not None:
            state = scheduler.receive(state, result)
        if not state.leaderboard.scores:
            raise RunError("all agents diverged: no validation score is a number; lower agent.learning_rate")
        training_seconds = state.seconds - state.scoring_seconds
        return Outcome(
            *(state.leaderboard, state.parents, state.samples),
            *(training_seconds, state.scoring_seconds, earlier_seconds),
        )

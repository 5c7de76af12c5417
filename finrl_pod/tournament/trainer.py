"""Training of assignments: what a shard does, whichever process it runs in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.tournament.cohort import Cohort
from finrl_pod.tournament.scoring import Scorer

MakeEnv = Callable[[Sequence[int]], Any]


class CohortTrainer:
    """Trains the pods of an assignment as one batch, scores them on validation and takes their snapshots.

    It keeps nothing between assignments: any shard can train any of them.
    """

    def __init__(
        self,
        config: RunConfig,
        make_env: MakeEnv,
        scorer: Scorer,
        data_sha256: str,
        threads: int | None = None,
    ) -> None:
        """make_env: member ids -> training environments. scorer: measures the pods after every assignment.

        threads: CPU threads, those of the config by default.
        """
        self.config, self.make_env, self.scorer, self.data_sha256 = config, make_env, scorer, data_sha256
        self.threads = config.threads if threads is None else threads

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        """Train an assignment until its samples or its seconds are used. report: environment steps of an iteration.

        Raises RunError if a parent or a replay buffer does not fit.
        """
        began = time.perf_counter()
        agent = (self.config.agent, *self.config.cohorts)[assignment.group.cohort]
        cohort = Cohort.create(
            self.make_env(assignment.group.slots),
            agent,
            assignment.slot_inits,
            assignment.parents,
            assignment.replay,
            seed=assignment.seed,
            threads=self.threads,
        )
        taken = 0

        def step(samples: int) -> bool:
            nonlocal taken
            taken += samples
            report(samples)
            return time.perf_counter() - began < assignment.seconds

        cohort.train(assignment.samples, self._schedule(agent), step)
        scored = cohort.scores(assignment.number, self.scorer)
        return AssignmentResult(
            group=assignment.group.number,
            number=assignment.number,
            scores=tuple(scored.scores),
            equity=scored.equity,
            returns=scored.returns,
            agents=tuple(cohort.snapshots(scored.scores, self.data_sha256)),
            rows=cohort.rows,
            replay=cohort.new_replay_items(),
            replay_first=cohort.replay_first,
            samples=taken,
            seconds=time.perf_counter() - began,
        )

    def _schedule(self, agent: AgentConfig) -> Callable[[int], float]:
        """Age of an agent in samples -> factor of its learning rate, which decays over as long as a tournament lasts.

        By age and not by the tournament's clock: an agent that starts late would hardly learn.
        """
        settings = self.config.tournament
        if agent.learning_rate_schedule == "constant":
            return lambda _: 1.0
        total = settings.generations * settings.samples_per_generation
        return lambda age: max(1 - age / total, 0.0)

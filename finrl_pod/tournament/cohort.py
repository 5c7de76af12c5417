"""Training of assignments on a shard. Pods of one algorithm train as the members of one batched learner."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from finrl_pod.files import to_plain
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.factory import is_solved
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig, TrainedAgentConfig
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import COUNTS, Assignment, AssignmentResult, ReplaySegment, join_segments
from finrl_pod.tournament.learning_curves import CurveRow
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.tournament.ranking import BASE
from finrl_pod.tournament.scoring import Scorer
from finrl_pod.types import AgentSnapshot, Floats, Score, Tensor

_log = logging.getLogger(__name__)
LOGGED_ROWS = 20  # points of the learning curves per generation
Step = Callable[[int], bool]
MakeEnv = Callable[[Sequence[int]], Any]


class ValidationResult(NamedTuple):
    """Scores of the pods of a cohort, equity [T, P], returns by id and of the base if any; NaN for diverged pods."""

    scores: list[Score]
    equity: Floats
    returns: dict[str, Floats]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Pods of one generation: member p of the learner is the pod of slot_inits[p].

    rows: points of the learning curves. items_before: items in the replay buffers before this generation; the oldest is
    in segment replay_first.
    """

    learner: Learner
    slot_inits: Sequence[SlotInit]
    items_before: int
    replay_first: int
    rows: list[CurveRow]

    @classmethod
    def create(
        cls,
        env: VecEnv,
        agent: AgentConfig,
        slot_inits: Sequence[SlotInit],
        parents: Mapping[str, AgentSnapshot],
        replay: Sequence[ReplaySegment],
        *,
        seed: int,
        threads: int,
        start: Tensor | None = None,
    ) -> Cohort:
        """Create the pods in their initial states.

        parents: agents by id. replay: items of the replay buffers, oldest first; items beyond their capacity are
        ignored. start: solved weights of agents that need them (`make_algorithm`). Raises RunError for missing items.
        """
        settings = [slot_init.hyperparameters for slot_init in slot_inits]
        learner = Learner(env, agent, seed=seed, hyperparameters=settings, threads=threads, start=start)
        for p, slot_init in enumerate(slot_inits):
            if slot_init.kind != "reinit" and slot_init.parent is not None:
                learner.restore(parents[slot_init.parent], p)
        algorithm = learner.algorithm
        items_before = 0
        first = 0
        if algorithm.slot_items and replay:
            items, first = join_segments(replay, algorithm.slot_items)
            algorithm.load_slot_state(items)
            items_before = int(items[COUNTS][0])
        for p, slot_init in enumerate(slot_inits):
            if slot_init.kind == "reinit":
                algorithm.restart_slot(p)
        return cls(learner, slot_inits, items_before, first, [])

    def train(self, samples: int, schedule: Callable[[int], float], step: Step) -> None:
        """Train every pod on `samples`; step(samples of all pods) is called after each iteration, False stops."""
        iterations = -(-samples // self.learner.iteration_samples)
        iteration = 0

        def on_iteration(learner: Learner, metrics: Metrics) -> bool:
            nonlocal iteration
            iteration += 1
            goes_on = step(learner.iteration_samples * len(self.slot_inits))
            if iteration % max(1, iterations // LOGGED_ROWS) == 0 or iteration == iterations or not goes_on:
                values = {name: column.tolist() for name, column in metrics.items()}
                self.rows.append({"samples": list(learner.samples), **to_plain(values)})
            return goes_on

        self.learner.learn(samples, callback=on_iteration, schedule=schedule)

    def scores(self, generation: int, scorer: Scorer) -> ValidationResult:
        result = scorer(self.learner)
        diverged_pods = [not alive for alive in self.learner.alive]
        equity = result.equity.copy()
        returns = result.returns.copy()
        equity[:, diverged_pods] = returns[:, diverged_pods] = math.nan
        scores = [
            Score(
                id=f"g{generation:02d}s{slot_init.slot:02d}",
                parent=slot_init.parent,
                generation=generation,
                slot=slot_init.slot,
                samples=self.learner.samples[p],
                score=result.scores[p] if alive else math.nan,
                hyperparameters=self.learner.hyperparameters(p),
                metrics=result.metrics[p],
            )
            for p, (slot_init, alive) in enumerate(zip(self.slot_inits, self.learner.alive, strict=True))
        ]
        for score, has_diverged in zip(scores, diverged_pods, strict=True):
            if has_diverged:
                _log.warning(
                    "agent %s diverged: its loss is NaN or infinite; it has no score and is replaced", score.id
                )
        by_name = {score.id: returns[:, p] for p, score in enumerate(scores)}
        return ValidationResult(scores, equity, by_name if result.base is None else {**by_name, BASE: result.base})

    def snapshots(self, scores: Sequence[Score], data_sha256: str) -> list[AgentSnapshot]:
        """Snapshots of all pods. scores: scores with the ids and parents of the pods."""
        return [
            self.learner.snapshot(p, id=score.id, parent=score.parent, data_sha256=data_sha256)
            for p, score in enumerate(scores)
        ]


class CohortTrainer:
    """Trains the pods of an assignment as one batch, scores them on validation and takes their snapshots.

    It has no state: any shard can train any assignment.
    """

    def __init__(
        self,
        config: RunConfig,
        make_env: MakeEnv,
        scorer: Scorer,
        data_sha256: str,
        threads: int | None = None,
        solved_start: Callable[[], Tensor] | None = None,
    ) -> None:
        """make_env: member ids -> training environments. scorer: measures the pods after every assignment.

        threads: CPU threads; default: the number in the config. solved_start: solved weights [F] for agents that need
        them; solved on the training environments by default.
        """
        self.config = config
        self.make_env = make_env
        self.scorer = scorer
        self.data_sha256 = data_sha256
        self.threads = config.threads if threads is None else threads
        self.solved_start = solved_start

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        """Train an assignment until its samples or its seconds are used.

        report: called with the environment steps of each iteration. Raises RunError if a parent or a replay buffer does
        not fit.
        """
        start_time = time.perf_counter()
        agent = (self.config.agent, *self.config.cohorts)[assignment.group.cohort]
        cohort = Cohort.create(
            self.make_env(assignment.group.slots),
            agent,
            assignment.slot_inits,
            assignment.parents,
            assignment.replay,
            seed=assignment.seed,
            threads=self.threads,
            start=self.solved_start() if self.solved_start is not None and is_solved(agent) else None,
        )
        sample_count = 0

        def step(samples: int) -> bool:
            nonlocal sample_count
            sample_count += samples
            report(samples)
            return time.perf_counter() - start_time < assignment.seconds

        cohort.train(assignment.samples, self._schedule(agent), step)
        training_end = time.perf_counter()
        validation = cohort.scores(assignment.number, self.scorer)
        scoring_seconds = time.perf_counter() - training_end
        return AssignmentResult(
            group=assignment.group.number,
            number=assignment.number,
            scores=tuple(validation.scores),
            equity=validation.equity,
            returns=validation.returns,
            agents=tuple(cohort.snapshots(validation.scores, self.data_sha256)),
            rows=cohort.rows,
            replay=cohort.learner.algorithm.slot_state(cohort.items_before),
            replay_first=cohort.replay_first,
            samples=sample_count,
            seconds=time.perf_counter() - start_time,
            scoring_seconds=scoring_seconds,
        )

    def _schedule(self, agent: AgentConfig) -> Callable[[int], float]:
        """Age of an agent in samples -> factor of its learning rate. It decays over the length of a tournament.

        The age counts, not the time of the tournament: an agent that starts late would hardly learn.
        """
        settings = self.config.tournament
        if not isinstance(agent, TrainedAgentConfig) or agent.learning_rate_schedule == "constant":
            return lambda _: 1.0
        total = settings.generations * settings.samples_per_generation
        return lambda age: max(1 - age / total, 0.0)

"""The tournament on one machine: generations of pods trained side by side, scored on validation, bred from the best.

A generation is the unit of work: it starts from what the last one left on disk, draws from streams keyed by its own
number, and counts only once it is wholly written. So a run that was killed and resumed equals one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finrl_pod import streams
from finrl_pod.config import RunConfig
from finrl_pod.errors import RunError
from finrl_pod.pod.generator import Birth, first_births, next_births
from finrl_pod.pod.leaderboard import Leaderboard, score_from_plain
from finrl_pod.pod.progress import Progress
from finrl_pod.pod.run_directory import RunDirectory
from finrl_pod.pod.scoring import metrics_of, run_members
from finrl_pod.pod.settings import check
from finrl_pod.rl.learner import Learner
from finrl_pod.types import AgentSnapshot, Floats, MarketTensor, Score, Tensor

MakeEnv = Callable[[Sequence[int]], Any]
Report = Callable[[Progress], None]
Watch = Callable[[Learner, dict[str, Tensor]], bool]
# Told of every generation before it counts: its number, the scores of its slots, their equity [T, P] on validation.
Record = Callable[[int, Sequence[Score], Floats], None]
LOGGED_ROWS = 20  # learning-curve points kept of a generation


@dataclass(frozen=True)
class Outcome:
    """leaderboard: the best. parents: id -> parent's id of every agent made. samples: environment steps, all pods."""

    leaderboard: Leaderboard
    parents: Mapping[str, str | None]
    samples: int
    train_seconds: float


@dataclass(frozen=True)
class _State:
    generation: int
    leaderboard: Leaderboard
    current: tuple[Score, ...]
    parents: Mapping[str, str | None]
    samples: int
    train_seconds: float


class Tournament:
    """Breeds pods for a number of generations and keeps a leaderboard."""

    def __init__(
        self,
        config: RunConfig,
        market: MarketTensor,
        make_env: MakeEnv,
        validation: tuple[int, int],
        run: RunDirectory,
        data_sha256: str,
        report: Report = lambda _: None,
        record: Record = lambda *_: None,
    ) -> None:
        """make_env(member ids) gives the training environments; validation: first and last bar of the scoring split.

        record: keeps count of what was tried; a generation that is repeated after a kill is told again.
        """
        check(config.tournament)
        self.record = record
        self.config, self.market, self.make_env = config, market, make_env
        self.validation, self.run_directory, self.data_sha256, self.report = validation, run, data_sha256, report
        self._began = time.perf_counter()
        self._fresh_samples = 0  # of this process
        self._taken = 0  # of this generation

    def run(self) -> Outcome:
        """Train until the last generation or the wall-clock limit; goes on from what the run directory holds."""
        settings = self.config.tournament
        state = self._restored() or _State(-1, Leaderboard(settings.leaderboard), (), {}, 0, 0.0)
        while state.generation + 1 < settings.generations:
            if state.generation >= 0 and self._over(state.train_seconds):
                break
            state = self._generation(state)
        if not state.leaderboard.scores:
            raise RunError("no agent reached a validation score that is a number; lower agent.learning_rate")
        return Outcome(state.leaderboard, state.parents, state.samples, state.train_seconds)

    # ------------------------------------------------------------------ one generation

    def _generation(self, state: _State) -> _State:
        config, number = self.config, state.generation + 1
        began = time.perf_counter()
        births = (
            first_births(config.agent, config.tournament, config.seed)
            if number == 0
            else next_births(config.agent, config.tournament, config.seed, number, state.leaderboard, state.current)
        )
        learner = self._learner(number, births)
        rows: list[dict[str, Any]] = []
        learner.learn(
            config.tournament.samples,
            callback=self._watch(number, state, rows),
            schedule=self._schedule(number),
        )
        scores, equity = self._scores(number, births, learner)
        self.record(number, scores, equity)
        board = state.leaderboard.insert(scores)
        parents = {**state.parents, **{score.id: score.parent for score in scores}}
        done = _State(
            number,
            board,
            tuple(scores),
            parents,
            state.samples + self._taken,
            state.train_seconds + time.perf_counter() - began,
        )
        self._save(done, learner, births, rows)
        return done

    def _learner(self, number: int, births: Sequence[Birth]) -> Learner:
        """All slots of a generation as the members of one batched learner, each in the state its birth says."""
        env = self.make_env([birth.slot for birth in births])
        learner = Learner(
            env,
            self.config.agent,
            seed=streams.key(self.config.seed, number, "generation"),
            hyperparameters=[birth.hyperparameters for birth in births],
            threads=self.config.threads,
        )
        for p, birth in enumerate(births):
            if birth.kind != "fresh" and birth.parent is not None:
                learner.restore(self.run_directory.snapshot(birth.parent), p)
        return learner

    def _schedule(self, number: int) -> Callable[[int], float]:
        """The learning rate falls over the whole tournament, not over each generation."""
        settings = self.config.tournament
        if self.config.agent.learning_rate_schedule == "constant":
            return lambda _: 1.0
        total = settings.generations * settings.samples
        return lambda done: max(1 - (number * settings.samples + done) / total, 0.0)

    def _scores(self, number: int, births: Sequence[Birth], learner: Learner) -> tuple[list[Score], Floats]:
        """Validation scores of all slots, and their equity [T, P]; a member that broke has neither."""
        ledger = run_members(
            learner.ppo.policy,
            {name: view.detach() for name, view in learner.ppo.parameters.views.items()},
            self.market,
            self.config.environment,
            *self.validation,
        )
        metrics, equity = metrics_of(ledger), ledger.equity.cpu().numpy().copy()
        equity[:, [not alive for alive in learner.alive]] = math.nan
        scores = [
            Score(
                id=_name(number, birth.slot),
                parent=birth.parent,
                generation=number,
                slot=birth.slot,
                samples=learner.samples[p],
                score=metrics[p]["sharpe"] if alive else math.nan,
                hyperparameters=learner.hyperparameters(p),
                metrics=metrics[p],
            )
            for p, (birth, alive) in enumerate(zip(births, learner.alive, strict=True))
        ]
        return scores, equity

    def _watch(self, number: int, state: _State, rows: list[dict[str, Any]]) -> Watch:
        """Called after every iteration: reports progress, keeps points of the learning curves, minds the clock."""
        settings = self.config.tournament
        seen, self._taken, began = 0, 0, time.perf_counter()

        def watch(learner: Learner, metrics: dict[str, Tensor]) -> bool:
            nonlocal seen
            each = learner.config.horizon * learner.env.envs
            iterations = -(-settings.samples // each)
            seen += 1
            self._fresh_samples += each * settings.pods
            self._taken += each * settings.pods
            late = self._over(state.train_seconds + time.perf_counter() - began)
            if seen % max(1, iterations // LOGGED_ROWS) == 0 or seen == iterations or late:
                plain = {name: [_number(x) for x in column.tolist()] for name, column in metrics.items()}
                rows.append({"samples": list(learner.samples), **plain})
            rate = self._fresh_samples / max(time.perf_counter() - self._began, 1e-9)
            done = state.samples + self._taken
            total = iterations * each * settings.pods * settings.generations
            best = state.leaderboard.best
            self.report(
                Progress(
                    stage=f"training generation {number + 1} of {settings.generations}",
                    samples=done,
                    total_samples=total,
                    samples_per_second=rate,
                    best=None if best is None else best.score,
                    seconds_left=(total - done) / rate,
                )
            )
            return not late

        return watch

    def _over(self, seconds: float) -> bool:
        """Whether training took as long as it may."""
        limit = self.config.tournament.seconds
        return bool(limit) and seconds >= limit

    # ------------------------------------------------------------------ on disk

    def _save(self, state: _State, learner: Learner, births: Sequence[Birth], rows: list[dict[str, Any]]) -> None:
        agents: list[AgentSnapshot] = [
            learner.snapshot(p, id=score.id, parent=score.parent, data_sha256=self.data_sha256)
            for p, score in enumerate(state.current)
        ]
        keep = {score.id for score in (*state.leaderboard.scores, *state.current)}
        plain = {
            "generation": state.generation,
            "leaderboard": state.leaderboard.plain(),
            "current": [_finite(asdict(score)) for score in state.current],
            "parents": dict(state.parents),
            "samples": state.samples,
            "train_seconds": state.train_seconds,
        }
        metrics = {"slots": [birth.slot for birth in births], "rows": rows}
        self.run_directory.save_generation(state.generation, agents, keep, metrics, _finite(plain))

    def _restored(self) -> _State | None:
        plain = self.run_directory.state()
        if plain is None:
            return None
        return _State(
            int(plain["generation"]),
            Leaderboard.from_plain(self.config.tournament.leaderboard, plain["leaderboard"]),
            tuple(score_from_plain(row) for row in plain["current"]),
            plain["parents"],
            int(plain["samples"]),
            float(plain["train_seconds"]),
        )


def _name(generation: int, slot: int) -> str:
    return f"g{generation:02d}s{slot:02d}"


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return _number(value) if isinstance(value, float) else value

"""The tournament: generations of pods, trained side by side and ranked by validation score (population-based training).

A generation is the unit of work: it starts from what the previous one saved, draws from generators keyed by its number,
and counts only once it is completely written. A run that was killed and resumed therefore equals an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from finrl_pod import random
from finrl_pod.errors import RunError
from finrl_pod.files import to_plain
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.run import RunConfig, validate_tournament
from finrl_pod.tournament import run_directory
from finrl_pod.tournament.cohort import Cohort, Step, learning_curves
from finrl_pod.tournament.leaderboard import Leaderboard, root_of, score_from_dict
from finrl_pod.tournament.next_generation import SlotInit, initial_slots, next_slots
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.ranking import PastScore, past_from_dict, past_score
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import Scorer
from finrl_pod.types import Floats, Score, Tensor

MakeEnv = Callable[[Sequence[int]], Any]
# Called for every generation before it is saved: number, scores of its pods, validation equity [T, pods].
Record = Callable[[int, Sequence[Score], Floats], None]


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
    history: Mapping[str, PastScore]


class Tournament:
    """Trains generations of pods and keeps a leaderboard."""

    def __init__(
        self,
        config: RunConfig,
        make_env: MakeEnv,
        scorer: Scorer,
        run: RunDirectory,
        data_sha256: str,
        report: ProgressCallback = lambda _: None,
        record: Record = lambda *_: None,
    ) -> None:
        """make_env: member ids -> training environments. scorer: measures the pods after every generation.

        record: registers trials; called again for a generation that is repeated after a kill.
        """
        validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
        self.record = record
        self.config, self.make_env, self.scorer = config, make_env, scorer
        self.run_directory, self.data_sha256, self.report = run, data_sha256, report
        self._began = time.perf_counter()
        self._fresh_samples = 0  # of this process
        self._taken = 0  # of this generation
        self._oldest: dict[int, int] = {}  # cohort -> first generation whose replay items are still in use

    def run(self) -> Outcome:
        """Train until the last generation or the wall-clock limit, continuing from the run directory."""
        settings = self.config.tournament
        state = self._restored() or _State(-1, Leaderboard.from_state(None, settings), (), {}, 0, 0.0, {})
        while state.generation + 1 < settings.generations:
            if state.generation >= 0 and state.train_seconds >= self._limit:
                break
            state = self._generation(state)
        if not state.leaderboard.scores:
            raise RunError("all agents diverged: no validation score is a number; lower agent.learning_rate")
        return Outcome(state.leaderboard, state.parents, state.samples, state.train_seconds)

    # ------------------------------------------------------------------ one generation

    def _generation(self, state: _State) -> _State:
        config, number = self.config, state.generation + 1
        began = time.perf_counter()
        self._taken = 0
        cohorts: list[Cohort] = []
        agents = (config.agent, *config.cohorts)
        for i, agent in enumerate(agents):
            places = range(i, config.tournament.pods, 1 + len(config.cohorts))
            cohorts.append(self._cohort(number, i, agent, self._slot_inits(number, agent, places, state)))
            elapsed = state.train_seconds + time.perf_counter() - began
            # What is left of the limit is shared equally by this cohort and those after it.
            limit = elapsed + max(self._limit - elapsed, 0.0) / (len(agents) - i)
            watch = self._watch(number, state, cohorts[-1], began, limit)
            cohorts[-1].train(config.tournament.samples_per_generation, self._schedule(agent), watch)
        measured = [cohort.scores(number, self.scorer) for cohort in cohorts]
        scored = [score for result in measured for score in result.scores]
        parents = {**state.parents, **{score.id: score.parent for score in scored}}
        scores = [replace(score, root=root_of(score.id, parents)) for score in scored]
        self.record(number, scores, np.concatenate([result.equity for result in measured], 1))
        done = _State(
            number,
            state.leaderboard.insert(scores),
            tuple(sorted(scores, key=lambda score: score.slot)),
            parents,
            state.samples + self._taken,
            state.train_seconds + time.perf_counter() - began,
            {**state.history, **{score.id: past_score(score) for score in scores}},
        )
        returns = {name: x for result in measured for name, x in result.returns.items()}
        self._save(done, cohorts, returns)
        return done

    def _slot_inits(self, number: int, agent: AgentConfig, places: Sequence[int], state: _State) -> list[SlotInit]:
        """Initial states of a cohort's pods; agents are copied within a cohort only, where weights fit."""
        config = self.config
        if number == 0:
            return initial_slots(agent, places, config.seed, search=config.tournament.search)
        current = [score for score in state.current if score.slot in places]
        board = state.leaderboard.of_slots(places)
        history = {agent: past for agent, past in state.history.items() if past.slot in places}
        generations = {score.generation for score in (*board.scores, *current)}
        returns = self.run_directory.validation_returns(generations) if config.tournament.novelty else {}
        return next_slots(agent, config.tournament, config.seed, number, board, current, history, returns)

    def _cohort(self, number: int, place: int, agent: AgentConfig, slot_inits: Sequence[SlotInit]) -> Cohort:
        def kept(items: int) -> Mapping[str, Tensor] | None:
            found = run_directory.load_slot_state(self.run_directory, place, number - 1, items) if number else None
            self._oldest[place] = number if found is None else found[1]
            return None if found is None else found[0]

        return Cohort.create(
            self.make_env([slot_init.slot for slot_init in slot_inits]),
            agent,
            slot_inits,
            self.run_directory.snapshot,
            kept,
            seed=random.key(self.config.seed, number, "generation"),
            threads=self.config.threads,
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

    def _watch(self, number: int, state: _State, cohort: Cohort, began: float, limit: float) -> Step:
        """Callback after every iteration: reports progress, returns False at the limit, in seconds of training."""
        settings, each = self.config.tournament, cohort.learner.iteration_samples
        total = -(-settings.samples_per_generation // each) * each * settings.pods * settings.generations
        named = f" ({cohort.learner.config.algorithm})" if self.config.cohorts else ""

        def watch(samples: int) -> bool:
            self._fresh_samples += samples
            self._taken += samples
            rate = self._fresh_samples / max(time.perf_counter() - self._began, 1e-9)
            done = state.samples + self._taken
            best = state.leaderboard.best
            self.report(
                Progress(
                    stage=f"training generation {number + 1} of {settings.generations}{named}",
                    samples=min(done, total),
                    total_samples=total,
                    samples_per_second=rate,
                    best=None if best is None else best.score,
                    seconds_left=max(total - done, 0) / rate,
                )
            )
            return state.train_seconds + time.perf_counter() - began < limit

        return watch

    @property
    def _limit(self) -> float:
        """Wall-clock limit of training in seconds, infinite if there is none."""
        return self.config.tournament.seconds or math.inf

    # ------------------------------------------------------------------ on disk

    def _save(self, state: _State, cohorts: Sequence[Cohort], returns: Mapping[str, Floats]) -> None:
        by_slot = {score.slot: score for score in state.current}
        agents = [agent for cohort in cohorts for agent in cohort.snapshots(by_slot, self.data_sha256)]
        keep = {score.id for score in (*state.leaderboard.scores, *state.current)}
        plain = {
            "generation": state.generation,
            "leaderboard": state.leaderboard.to_dict(),
            "current": [to_plain(asdict(score)) for score in state.current],
            "parents": dict(state.parents),
            "samples": state.samples,
            "train_seconds": state.train_seconds,
            "history": {name: asdict(past) for name, past in state.history.items()},
        }
        for place, cohort in enumerate(cohorts):
            if seen := cohort.new_replay_items():
                self.run_directory.save_replay(state.generation, place, seen)
        self.run_directory.save_validation(state.generation, returns)
        metrics = {**learning_curves(cohorts), "agents": to_plain(plain["current"])}
        self.run_directory.save_generation(state.generation, agents, keep, metrics, to_plain(plain))
        for place, first in self._oldest.items():  # a resumed run cannot need older items
            self.run_directory.forget_replay(first - 1, place)

    def _restored(self) -> _State | None:
        plain = self.run_directory.state()
        if plain is None:
            return None
        board = Leaderboard.from_state(plain, self.config.tournament)
        current = tuple(score_from_dict(row, plain["parents"]) for row in plain["current"])
        # Earlier versions saved no history: what is left of it are these agents.
        left = {score.id: past_score(score) for score in (*board.scores, *current)}
        history = {name: past_from_dict(row) for name, row in plain.get("history", {}).items()}
        return _State(
            int(plain["generation"]),
            board,
            current,
            plain["parents"],
            int(plain["samples"]),
            float(plain["train_seconds"]),
            history or left,
        )

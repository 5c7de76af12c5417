"""The learner: P agents on one environment, trained side by side, saved and resumed.

env = PortfolioEnv(market, config.environment, last=train_end)
learner = Learner(env, config.agent, seed=7)
learner.learn(1_000_000, callback=lambda learner, metrics: print(learner.samples[0], metrics["reward"]))
learner.snapshot()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from finrl_pod import __version__
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.memory import keep_freed_memory
from finrl_pod.native.device import matmul_precision, use_threads
from finrl_pod.protocols import ResumableVecEnv, VecEnv
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.factory import make_algorithm
from finrl_pod.rl.algorithms.idle_settings import idle_settings
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.rl.training.graphs import GraphedIterations, MakeGraph, cuda_graph
from finrl_pod.settings.algorithm_configs import AgentConfig, PPOConfig, TrainedAgentConfig
from finrl_pod.types import AgentSnapshot, Normaliser, Tensor

_log = logging.getLogger(__name__)
Callback = Callable[["Learner", Metrics], bool | None]


class Learner:
    """P members, each with its own weights, settings and random generators."""

    def __init__(
        self,
        env: VecEnv,
        config: AgentConfig | None = None,
        *,
        seed: int = 0,
        hyperparameters: Sequence[Mapping[str, float]] | None = None,
        threads: int = 0,
        dtype: torch.dtype = torch.float32,
        start: Tensor | None = None,
    ) -> None:
        """env: its `member_ids` key the random generators. config: settings of any algorithm, by default PPO.

        threads: CPU threads, 0 keeps the current number. start: solved weights, see `make_algorithm`. Logs a warning
        for each setting that was changed and changes nothing.

        Raises ConfigError for settings that do not fit.
        """
        if threads:
            use_threads(threads)
        keep_freed_memory()
        self.env = env
        self.config = config or PPOConfig()
        self.seed = seed
        self._hyperparameters = hyperparameters
        self._dtype = dtype
        self._start = start
        self.algorithm = make_algorithm(
            self.config, env, seed=seed, hyperparameters=hyperparameters, dtype=dtype, start=start
        )
        for name, reason in idle_settings(self.config, env).items():
            _log.warning("agent.%s = %s changes nothing: %s", name, getattr(self.config, name), reason)
        self.samples = [0] * env.members
        self._collector: RolloutCollector | None = None
        self._graph_runner: GraphedIterations | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or pickle has settings and state of the algorithm, no kernels and no captured graphs.

        The state is of arrays: a process that is spawned shares the memory of tensors, and these live only here.
        """
        make = partial(
            Learner, seed=self.seed, hyperparameters=self._hyperparameters, dtype=self._dtype, start=self._start
        )
        agents = {name: x.numpy() for name, x in self._agents().items()}
        return make, (self.env, self.config), (self._collector, self.algorithm.settings, agents)

    def __setstate__(self, state: tuple[RolloutCollector | None, dict[str, Tensor], dict[str, NDArray[Any]]]) -> None:
        self._collector, settings, agents = state
        for name, column in self.algorithm.settings.items():
            column.copy_(settings[name])
        self._restore_agents({name: torch.tensor(x) for name, x in agents.items()})

    @property
    def alive(self) -> list[bool]:
        """For each member, False if its loss became NaN or infinite."""
        return [bool(x) for x in self.algorithm.alive]

    @property
    def iteration_samples(self) -> int:
        """Environment steps of a member in one iteration."""
        return int(self.algorithm.steps_per_iteration * self.env.envs)

    def learn(
        self, samples: int, *, callback: Callback | None = None, schedule: Callable[[int], float] | None = None
    ) -> Metrics:
        """Train on at least `samples` environment steps per member; returns the metrics of the last iteration [P].

        callback(learner, metrics) is called after every iteration; returning False stops. schedule: age of a member
        (samples since its weights were new) -> factor of its learning rate; by default the schedule of the config over
        this call.
        """
        if samples < 1:
            raise ConfigError(f"samples must be at least 1, got {samples}")
        linear = isinstance(self.config, TrainedAgentConfig) and self.config.learning_rate_schedule == "linear"
        each = self.iteration_samples
        like = self.algorithm.settings.get("learning_rate", torch.zeros(()))
        metrics: Metrics = {}
        if self._graph_runner is None and like.device.type == "cuda":
            self.use_graphs(cuda_graph)
        for i in range(-(-samples // each)):
            if schedule is None:
                metrics = self._iterate(1 - i * each / samples if linear else 1.0)
            else:
                metrics = self._iterate(torch.tensor([schedule(age) for age in self.samples]).to(like))
            self.samples = [n + each for n in self.samples]
            if callback is not None and callback(self, metrics) is False:
                break
        return metrics

    def use_graphs(self, make_graph: MakeGraph) -> GraphedIterations:
        """Replay iterations by captured graphs where they can be captured; on CUDA devices `learn` does so itself."""
        self._graph_runner = GraphedIterations(self.algorithm, self.collector, make_graph, self.checkpoint, self.resume)
        return self._graph_runner

    def _iterate(self, rate_factor: RateFactor) -> Metrics:
        precision = self.config.matmul_precision if isinstance(self.config, TrainedAgentConfig) else "float32"
        with matmul_precision(precision, self.algorithm.alive.device):
            if self._graph_runner is not None:
                return self._graph_runner.iterate(rate_factor)
            return self.algorithm.iterate(self.collector, rate_factor)

    @property
    def collector(self) -> RolloutCollector:
        """Steps the environments; they are reset on first access."""
        if self._collector is None:
            self._collector = RolloutCollector(self.env, self.seed)
        return self._collector

    def act(self, observation: Any) -> Tensor:
        """Actions [P, E, D] without exploration for observations of the environment."""
        return self.algorithm.greedy(observation)

    def hyperparameters(self, p: int = 0) -> dict[str, float]:
        """Settings of member p."""
        return {name: float(column[p]) for name, column in self.algorithm.settings.items()}

    def snapshot(
        self, p: int = 0, *, id: str = "agent", parent: str | None = None, data_sha256: str = ""
    ) -> AgentSnapshot:
        """Everything needed to run or continue member p. Without a market it has neither features nor market rules."""
        env = self.env if isinstance(self.env, MarketVecEnv) else None
        weights, training_state = self.algorithm.member(p)
        return AgentSnapshot(
            id=id,
            parent=parent,
            spec={
                **asdict(self.algorithm.spec),
                "algorithm": self.config.algorithm,
                "environment": None if env is None else asdict(env.config),
                "mandate": None if env is None or env.mandate is None else asdict(env.mandate),
            },
            weights=weights,
            optimiser=training_state,
            normaliser=self._normaliser,
            hyperparameters=self.hyperparameters(p),
            samples=self.samples[p],
            data_sha256=data_sha256,
            seed=self.seed,
            version=__version__,
        )

    def checkpoint(self, since: int = 0) -> dict[str, Tensor]:
        """State from which an identically created Learner continues exactly: name -> CPU tensor.

        Includes the slots' random generators, replay buffers and environments. since: number of buffer items saved
        before; newer ones are included as "slot.NAME" [P, n, ...].
        """
        self.collector  # noqa: B018  resets the environments the first time
        world = {f"world.{name}": x.cpu().clone() for name, x in _resumable(self.env).checkpoint().items()}
        return self._agents(since) | world

    def _agents(self, since: int = 0) -> dict[str, Tensor]:
        """`checkpoint` without the environments."""
        state = {f"slot.{name}": x.cpu().clone() for name, x in self.algorithm.slot_state(since).items()}
        for p in range(self.env.members):
            weights, training_state = self.algorithm.member(p)
            state |= {f"weights.{p}.{name}": x for name, x in weights.items()}
            state |= {f"rest.{p}.{name}": x for name, x in training_state.items()}
        # Prefixes of saved files: "stream" is a random generator, "world" the environment.
        state |= {f"stream.{i}": s.get_state() for i, s in enumerate(self.algorithm.generators())}
        return {**state, "alive": self.algorithm.alive.cpu().clone(), "samples": torch.tensor(self.samples)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint and continue exactly. Raises RunError if it does not fit."""
        collector = self.collector
        try:
            self._restore_agents(state)
            collector.observe(_resumable(self.env).resume(_part(state, "world.")))
        except (KeyError, RuntimeError) as error:
            raise RunError(f"the checkpoint does not fit this learner: {error}") from None

    def _restore_agents(self, state: Mapping[str, Tensor]) -> None:
        """Restore the part of a checkpoint that `_agents` returns."""
        for p in range(self.env.members):
            self.algorithm.load_member(p, _part(state, f"weights.{p}."), _part(state, f"rest.{p}."))
        for i, generator in enumerate(self.algorithm.generators()):
            generator.set_state(state[f"stream.{i}"])
        self.algorithm.load_slot_state(_part(state, "slot."))
        self.samples = [int(n) for n in state["samples"]]
        for p, age in enumerate(self.samples):
            self.algorithm.set_age(p, age)
        self.algorithm.alive.copy_(state["alive"])

    def restore(self, snapshot: AgentSnapshot, p: int = 0) -> None:
        """Load a snapshot into slot p (warm start): weights, moments, reward scale, sample count.

        Hyperparameters and random generators of the slot are kept. Raises RunError if the snapshot does not fit.
        """
        misfit = f"snapshot {snapshot.id} does not fit this agent"
        if (theirs := snapshot.spec.get("algorithm")) != self.config.algorithm:
            raise RunError(
                f"snapshot {snapshot.id} was trained by {theirs}, this agent uses {self.config.algorithm}; "
                f"set agent.algorithm = {theirs!r}"
            )
        shapes = {name: tuple(value.shape) for name, value in snapshot.weights.items()}
        expected_shapes = self.algorithm.shapes()
        if shapes != expected_shapes:
            odd, _ = min(shapes.items() ^ expected_shapes.items())
            raise RunError(
                f"{misfit}: {odd} has shape {shapes.get(odd)}, expected {expected_shapes.get(odd)}; "
                "use the policy, hidden sizes and features it was trained with"
            )
        if not self.algorithm.alive[p]:  # its accounts and buffers contain NaN too
            raise RunError(
                f"member {p} diverged (loss is NaN) and its environments were stopped; restore snapshot {snapshot.id} "
                "into a new Learner"
            )
        for name in ("kind", "activation", "action", "encoder", "lookback"):
            expected = getattr(self.algorithm.spec, name)
            if (value := snapshot.spec.get(name, expected)) != expected:
                raise RunError(
                    f"{misfit}: its {name} is {value!r}, expected {expected!r}; "
                    "use the policy, activation and environment it was trained with"
                )
        if odds := snapshot.optimiser.keys() ^ self.algorithm.member(p)[1].keys():
            raise RunError(
                f"{misfit}: only one of them has the training state {min(odds)}; "
                "use the optimiser and the settings it was trained with"
            )
        here = self._normaliser.feature_names
        if snapshot.normaliser.feature_names != here:
            raise RunError(
                f"snapshot {snapshot.id} was trained on the features {', '.join(snapshot.normaliser.feature_names)}, "
                f"the market has {', '.join(here)}; build the market with the features it was trained with"
            )
        self.algorithm.load_member(p, snapshot.weights, snapshot.optimiser)
        self.samples[p] = snapshot.samples
        self.algorithm.set_age(p, snapshot.samples)

    @property
    def _normaliser(self) -> Normaliser:
        return self.env.market.normaliser if isinstance(self.env, MarketVecEnv) else Normaliser((), (), ())


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def _resumable(env: VecEnv) -> ResumableVecEnv:
    if not isinstance(env, ResumableVecEnv):
        raise RunError(
            f"{type(env).__name__} cannot be continued exactly: it has no checkpoint() and resume(); implement "
            "finrl_pod.protocols.ResumableVecEnv"
        )
    return env

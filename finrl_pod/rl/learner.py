"""What a notebook user holds: P agents on one environment, that learn, act, and can be saved and continued.

env = PortfolioEnv(market, config.environment, last=train_end)
agent = Learner(env, config.agent, seed=7)
agent.learn(1_000_000, callback=lambda agent, metrics: print(agent.samples, metrics["reward"]))
agent.snapshot()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from finrl_pod import __version__
from finrl_pod.config import AgentConfig, check_ranges
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.memory import keep_freed_memory
from finrl_pod.rl.networks import PolicySpec
from finrl_pod.rl.ppo import MEMBER_SETTINGS, PPO, check_range
from finrl_pod.rl.worker import Worker
from finrl_pod.types import AgentSnapshot, Observation, Tensor

Metrics = dict[str, Tensor]
Callback = Callable[["Learner", Metrics], bool | None]


class Learner:
    """P members, each with its own weights, settings and random streams, trained side by side."""

    def __init__(
        self,
        env: Any,
        config: AgentConfig | None = None,
        *,
        seed: int = 0,
        hyperparameters: Sequence[Mapping[str, float]] | None = None,
        threads: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """env: a market environment (its `member_ids` name the members). threads: CPU threads, 0 leaves them alone."""
        if threads:
            torch.set_num_threads(threads)
        keep_freed_memory()
        self.env, self.config, self.seed = env, config or AgentConfig(), seed
        check(self.config, env)
        market = env.market
        _, assets, features = market.shape
        spec = PolicySpec(
            self.config.policy, assets, features, env.action_size, tuple(self.config.hidden), env.action_kind
        )
        decided = market.tradable[env.first : env.last + 2]
        self.ppo = PPO(
            spec,
            market.features,
            None if bool(decided.all()) else market.tradable,
            self.config,
            seed=seed,
            members=env.member_ids,
            hyperparameters=hyperparameters,
            dtype=dtype,
        )
        self.samples = [0] * env.members
        self._worker: Worker | None = None

    @property
    def alive(self) -> list[bool]:
        """For each member, whether its losses are still numbers."""
        return [bool(x) for x in self.ppo.alive]

    def learn(
        self,
        samples: int,
        *,
        callback: Callback | None = None,
        schedule: Callable[[int], float] | None = None,
    ) -> Metrics:
        """Train on at least `samples` environment steps for each member; returns the last iteration's metrics [P].

        callback(learner, metrics) is called after every iteration; returning False stops. schedule: samples of this
        call so far -> factor of the learning rate; by default the config's schedule over this call.
        """
        if samples < 1:
            raise ConfigError(f"samples must be at least 1, got {samples}")
        if self._worker is None:
            self._worker = Worker(self.env, self.seed)
        linear = self.config.learning_rate_schedule == "linear"
        factor = schedule or ((lambda done: 1 - done / samples) if linear else (lambda _: 1.0))
        each = self.config.horizon * self.env.envs
        metrics: Metrics = {}
        shape = (self.env.groups, self.env.accounts, self.env.action_size)
        for i in range(-(-samples // each)):
            rollout = self._worker.collect(self.ppo.act, self.ppo.noise(shape))
            metrics = self.ppo.update(rollout, factor(i * each))
            self.samples = [n + each for n in self.samples]
            if callback is not None and callback(self, metrics) is False:
                break
        return metrics

    @torch.no_grad()
    def act(self, observation: Observation) -> Tensor:
        """The mean action [P, E, D], without exploration, for observations as the environment gives them."""
        day, account = observation
        p, groups = day.shape
        mean, _ = self.ppo.act(day, account.view(p, groups, -1, account.shape[-1]))
        return mean.reshape(p, -1, mean.shape[-1])

    def hyperparameters(self, p: int = 0) -> dict[str, float]:
        """The settings of member p."""
        return {name: float(self.ppo.settings[name][p]) for name in MEMBER_SETTINGS}

    def snapshot(
        self, p: int = 0, *, id: str = "agent", parent: str | None = None, data_sha256: str = ""
    ) -> AgentSnapshot:
        """Everything needed to run or continue member p."""
        optimiser = {**self.ppo.optimiser.member(p), "reward_scale": self.ppo.reward_scale[p].cpu().clone()}
        return AgentSnapshot(
            id=id,
            parent=parent,
            spec={**asdict(self.ppo.spec), "algorithm": self.config.algorithm, "environment": asdict(self.env.config)},
            weights=self.ppo.parameters.member(p),
            optimiser=optimiser,
            normaliser=self.env.market.normaliser,
            hyperparameters=self.hyperparameters(p),
            samples=self.samples[p],
            data_sha256=data_sha256,
            seed=self.seed,
            version=__version__,
        )

    def restore(self, snapshot: AgentSnapshot, p: int = 0) -> None:
        """Continue from a snapshot in slot p (warm start): weights, moments, reward scale, sample count.

        Hyperparameters and random streams stay the slot's own. Raises RunError when the snapshot does not fit.
        """
        fits = {name: tuple(value.shape) for name, value in snapshot.weights.items()}
        wanted = {name: tuple(shape) for name, shape in self.ppo.parameters.shapes.items()}
        if fits != wanted:
            odd = sorted(name for name in fits.keys() | wanted.keys() if fits.get(name) != wanted.get(name))[0]
            raise RunError(
                f"snapshot {snapshot.id} does not fit this agent: {odd} has shape {fits.get(odd)}, "
                f"needed {wanted.get(odd)}; use the policy, hidden sizes and features it was trained with"
            )
        here = self.env.market.normaliser.feature_names
        if snapshot.normaliser.feature_names != here:
            raise RunError(
                f"snapshot {snapshot.id} was trained on the features {', '.join(snapshot.normaliser.feature_names)}, "
                f"the market has {', '.join(here)}; build the market with the features it was trained with"
            )
        self.ppo.parameters.load(p, snapshot.weights)
        self.ppo.optimiser.load(p, snapshot.optimiser)
        self.ppo.reward_scale[p] = snapshot.optimiser["reward_scale"]
        self.samples[p] = snapshot.samples


def check(config: AgentConfig, env: Any) -> None:
    """Raises ConfigError for a setting out of its range, or one that does not fit the environment."""
    ranges = {
        "hidden": len(config.hidden) >= 1 and min(config.hidden) >= 1,
        "horizon": config.horizon >= 1,
        "epochs": config.epochs >= 1,
        "minibatches": config.minibatches >= 1,
    }
    check_ranges("agent", config, ranges)
    for name in MEMBER_SETTINGS:
        check_range(name, getattr(config, name))
    if config.horizon > env.window:
        raise ConfigError(
            f"agent.horizon must be at most the episode's window of {env.window} bars, got {config.horizon}; "
            "shorten the horizon or lengthen environment.window"
        )
    items = config.horizon * env.groups
    if items % config.minibatches:
        raise ConfigError(
            f"agent.minibatches must divide horizon x groups = {config.horizon} x {env.groups} = {items}, "
            f"got {config.minibatches}; choose a divisor"
        )
    if items * env.accounts == config.minibatches:
        raise ConfigError(
            f"agent.minibatches leaves 1 sample in each of {config.minibatches} minibatches, which has no spread of "
            "advantages; take fewer minibatches or more environments"
        )

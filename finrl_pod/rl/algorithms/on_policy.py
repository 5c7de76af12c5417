"""Base of the on-policy algorithms: acting, members' state, and the checks of their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.protocols import MarketVecEnv, group_shape
from finrl_pod.protocols import VecEnv
from finrl_pod.random import RandomSource, RandomState, members_of
from finrl_pod.rl.acting.actor import MeanActor
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.regularisers import HTerm, Regularisers
from finrl_pod.rl.experience.rollout import Rollout
from finrl_pod.rl.experience.rollout_collector import IDENTITY, ObservationNormaliser, RolloutCollector, as_pair
from finrl_pod.rl.networks.distributions import Distribution
from finrl_pod.rl.networks.policies import Policy, PolicySpec
from finrl_pod.rl.optimisation.normalisation import RunningNormaliser
from finrl_pod.rl.optimisation.optimiser import Optimiser, Parameters
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import AgentConfig, OnPolicyConfig, PPOConfig
from finrl_pod.types import Tensor


class OnPolicy(ABC):
    """Learns from each rollout once. Subclasses define the policy, how it explores and the update."""

    config: OnPolicyConfig
    spec: PolicySpec
    policy: Policy
    distribution: Distribution
    parameters: Parameters
    optimiser: Optimiser
    settings: dict[str, Tensor]
    alive: Tensor
    reward_scale: Tensor
    regularisers: Regularisers | None
    running: RunningNormaliser | None
    _shuffles: RandomSource
    _noises: RandomSource
    _dropouts: RandomSource | None

    @abstractmethod
    def act(self, bar: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """Mean scores [P, K, A, D] and their log standard deviation, for bars [P, K] and accounts [P, K, A, 1 + N]."""

    @abstractmethod
    def valid_scores(self, bar: Tensor) -> Tensor | None:
        """Scores in the density of actions on bars [P, K]: [P, K, 1, D] bool, None if all are."""

    @torch.no_grad()
    def explore(self, bar: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions sampled with noise [P, K, A, D], and their log-probability [P, K, A]."""
        mean, log_std = self.act(bar, account)
        action = self.distribution.sample(mean, log_std, noise)
        return action, self.distribution.log_probability(action, mean, log_std, self.valid_scores(bar))

    @abstractmethod
    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Exploration noise [H, P, *shape] of the distribution, from each member's own generator."""

    @abstractmethod
    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        """Collect a rollout and learn from it; returns diagnostics, [P] each."""

    @abstractmethod
    def update(self, rollout: Rollout, learning_rate_factor: RateFactor = 1.0) -> Metrics:
        """Learn from one rollout; returns diagnostics, [P] each."""

    @property
    def h_term(self) -> HTerm | None:
        """Buffers of the H-term, None while it is off."""
        return None if self.regularisers is None else self.regularisers.h_term

    # ------------------------------------------------------------------ an Algorithm

    @property
    def actor(self) -> MeanActor:
        return MeanActor(self.spec)

    @property
    def observation_normaliser(self) -> ObservationNormaliser:
        """How observations and rewards are normalised: by running statistics with `normalise`, else not at all."""
        return self.running or IDENTITY

    @property
    def steps_per_iteration(self) -> int:
        return self.config.horizon

    @torch.no_grad()
    def greedy(self, observation: Any) -> Tensor:
        bar, account = as_pair(self.observation_normaliser.normalise(observation))
        p, groups = bar.shape
        mean, _ = self.act(bar, account.view(p, groups, -1, account.shape[-1]))
        best = self.distribution.best(mean)
        return best.reshape(p, -1, best.shape[-1])

    def weights(self) -> dict[str, Tensor]:
        statistics = self.running.weights() if self.running else {}
        return {**{name: view.detach() for name, view in self.parameters.views.items()}, **statistics}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        statistics = self.running.shapes() if self.running else {}
        return {**{name: tuple(shape) for name, shape in self.parameters.shapes.items()}, **statistics}

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        rest = {**self.optimiser.member(p), "reward_scale": self.reward_scale[p].cpu().clone()}
        statistics, more = self.running.member(p) if self.running else ({}, {})
        return {**self.parameters.member(p), **statistics}, {**rest, **more}

    def load_member(self, p: int, weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:
        self.parameters.load(p, weights)
        self.optimiser.load(p, rest)
        if self.running is not None:
            self.running.load(p, weights, rest)
        self.reward_scale[p] = rest["reward_scale"]

    def set_age(self, p: int, samples: int) -> None:  # noqa: B027  exploration is learned
        pass

    def restart_slot(self, p: int) -> None:  # noqa: B027  there is no warm-up
        pass

    def generators(self) -> list[RandomState]:
        of_h_term = self.h_term.source if self.h_term else None
        return members_of(self._shuffles, self._noises, of_h_term, self._dropouts)

    @property
    def slot_items(self) -> int:
        return self.h_term.buffer.capacity if self.h_term else 0

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:
        return self.h_term.state(since) if self.h_term else {}

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        if self.h_term is not None:
            self.h_term.buffer.load(state, int(state["counts"][0]))
        elif state:
            raise RunError(f"{self.config.algorithm} has no state between iterations, got {min(state)}")


def validate(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for a setting out of range, or one that does not fit the environment."""
    assert isinstance(config, OnPolicyConfig)
    if isinstance(env, MarketVecEnv) and config.horizon > env.episode_bars:
        raise ConfigError(
            f"agent.horizon must be at most the episode's window of {env.episode_bars} bars, got {config.horizon}; "
            "shorten the horizon or lengthen environment.window"
        )
    if isinstance(config, PPOConfig):
        _validate_minibatches(config, env)
        if config.clip_range_schedule == "linear" and config.learning_rate_schedule != "linear":
            raise ConfigError(
                'agent.clip_range_schedule = "linear" needs agent.learning_rate_schedule = "linear", got "constant"'
            )
    _validate_h_term(config)
    _validate_network(config, env)


def _validate_network(config: OnPolicyConfig, env: VecEnv) -> None:
    for name, usual in (("activation", "tanh"), ("orthogonal_init", True), ("use_sde", False)):
        if config.policy != "mlp" and getattr(config, name) != usual:
            raise ConfigError(
                f'agent.{name} needs agent.policy = "mlp", got {config.policy!r}; set the policy or omit agent.{name}'
            )
    if config.use_sde and env.action_kind == "discrete":
        raise ConfigError("agent.use_sde needs continuous actions, and this environment's are discrete; omit it")
    if config.use_sde and config.diversity:
        raise ConfigError("agent.diversity and agent.use_sde cannot be combined; omit one of them")
    if config.normalise and isinstance(env, MarketVecEnv):
        raise ConfigError(
            "agent.normalise is for flat observations; market features are already normalised on the training "
            "split. Omit agent.normalise"
        )


def _validate_h_term(config: OnPolicyConfig) -> None:
    if config.h_term and config.h_steps > config.horizon:
        raise ConfigError(f"agent.h_steps must be at most agent.horizon = {config.horizon}, got {config.h_steps}")


def _validate_minibatches(config: PPOConfig, env: VecEnv) -> None:
    _, groups, accounts = group_shape(env)
    items = config.horizon * groups
    if items % config.minibatches:
        raise ConfigError(
            f"agent.minibatches must divide horizon x groups = {config.horizon} x {groups} = {items}, "
            f"got {config.minibatches}"
        )
    if items * accounts == config.minibatches:
        raise ConfigError(
            f"agent.minibatches = {config.minibatches} leaves 1 sample in each minibatch, too few to standardise "
            "advantages; use fewer minibatches or more environments"
        )

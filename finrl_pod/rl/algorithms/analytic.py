"""Policy gradients through the market: the base class, and the analytic policy gradient.

The market is differentiable by the actions (fractional shares, proportional buys), so the gradient of the rewards over
a short horizon flows through fills, accounts and later decisions back to the weights. If an episode ends within the
horizon, the gradient ends there and the next episode starts from cash.

Score-function methods such as PPO estimate the gradient from sampled actions; this is the pathwise derivative,
back-propagation through time truncated to a horizon (`apg` in Freeman et al. 2021, arXiv:2106.13281).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Unpack

import torch

from finrl_pod.market.protocols import DifferentiableVecEnv
from finrl_pod.random import RandomState, generators, members_of
from finrl_pod.rl.algorithms.base import (
    COMMON_MEMBER_SETTINGS,
    Metrics,
    Population,
    TrainStateAlgorithm,
    scale_of_rewards,
    spread_of_rewards,
)
from finrl_pod.rl.experience.rollout import RolloutCollector
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.lookback import PolicyInputs
from finrl_pod.rl.networks.policies import Policy, PolicySpec, make_policy, with_start
from finrl_pod.rl.optimisation.optimiser import CRITIC_PREFIXES
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import DifferentiableConfig
from finrl_pod.types import Observation, Tensor

NOT_LEARNED = "log_std"  # exploration is a setting here; its gradient could only lower it


class Trajectory(NamedTuple):
    """H differentiable steps of P members, G groups, A accounts.

    bar: [H, P, G]; account: H times [P, G, A, 1 + N], observed before each decision; reward, terminated and done (last
    step of an episode): [H, P, G, A]; next_accounts: H times [P, G, A, 1 + N], the account after each step and before
    any reset, observed on the next bar.
    """

    bar: Tensor
    account: Sequence[Tensor]
    reward: Tensor
    terminated: Tensor
    done: Tensor
    next_accounts: Sequence[Tensor]


class DifferentiableAlgorithm(TrainStateAlgorithm):
    """Collects differentiable trajectories; subclasses define how to learn from them."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*COMMON_MEMBER_SETTINGS, "exploration_noise", "max_grad_norm")
    config: DifferentiableConfig

    def __init__(
        self,
        spec: PolicySpec,
        features: Tensor,
        tradable: Tensor | None,
        config: DifferentiableConfig,
        **population: Unpack[Population],
    ) -> None:
        """features: [T, N, F], the market table; tradable: [T, N] bool, or None if every asset always is."""
        super().__init__(spec, config, features.device, **population)
        self.inputs = PolicyInputs(spec, features.to(self.dtype), tradable)
        self.policy: Policy = make_policy(spec)
        self._shuffles = self._source("minibatches")
        initial = [
            {**self.policy.init(generator, self.dtype), **self.inputs.init(generator, self.dtype)}
            for generator in generators(self.seed, self.member_ids, "initial weights")
        ]
        actor = [
            {name: x for name, x in tensors.items() if not name.startswith((*CRITIC_PREFIXES, NOT_LEARNED))}
            for tensors in initial
        ]
        self.train_state.add("actor", with_start(actor, self.start))
        self._build(
            [{name: x for name, x in tensors.items() if name.startswith(CRITIC_PREFIXES)} for tensors in initial]
        )

    def _build(self, critic: Sequence[Mapping[str, Tensor]]) -> None:
        """Add further networks. critic: initial tensors of the policy critic, for each member."""

    @abstractmethod
    def _learn(self, trajectory: Trajectory, rate_factor: RateFactor) -> Metrics:
        """Learn from a trajectory; returns metrics [P]."""

    @property
    def steps_per_iteration(self) -> int:
        return self.config.horizon

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        trajectory = self._collect(collector)
        self._fix_reward_scale(trajectory.reward.detach())
        metrics = self._learn(trajectory, rate_factor)
        return {"reward": trajectory.reward.detach().mean((0, 2, 3)), **metrics}

    def _collect(self, collector: RolloutCollector) -> Trajectory:
        """`horizon` differentiable steps of every environment; no gradient enters or leaves them."""
        env = collector.env
        assert isinstance(env, DifferentiableVecEnv)  # see `validation.py`
        shape = collector.shape
        noise = self._noise((env.groups, env.accounts, env.action_size))
        views = self.train_state.views("actor")
        bars, accounts, next_accounts, rewards, terminated, truncated = ([] for _ in range(6))
        for h in range(self.config.horizon):
            bar, account = collector.observation
            account = account.view(*shape, -1).to(self.dtype)
            action = self._mean(views, bar, account) + noise[h]
            out = env.step_differentiable(action.view(env.members, env.envs, -1))
            bars.append(bar)
            accounts.append(account)
            next_accounts.append(out.final_observation.account.view(*shape, -1))
            rewards.append(out.reward.view(shape).to(self.dtype))
            terminated.append(out.terminated.view(shape))
            truncated.append(out.truncated.view(shape))
            collector.observation = out.observation
        env.detach()
        collector.observation = Observation(collector.observation.bar, collector.observation.account.detach())
        terminations = torch.stack(terminated)
        done = terminations | torch.stack(truncated)
        return Trajectory(torch.stack(bars), accounts, torch.stack(rewards), terminations, done, next_accounts)

    def _mean(self, views: Params, bar: Tensor, account: Tensor) -> Tensor:
        """Scores [P, K, A, D] without noise, for bars [P, K] and accounts [P, K, A, 1 + N]."""
        features, tradable = self.inputs.of_actor(views, bar)
        return self.policy.mean(views, features, account, tradable)

    def _noise(self, shape: tuple[int, ...]) -> Tensor:
        """exploration_noise x standard normal [H, P, *shape], independent for each member."""
        noise = self._noises.normal((self.config.horizon, *shape), self.dtype, dim=1)
        return noise * self.settings["exploration_noise"].view(1, -1, *[1] * len(shape))

    def _fix_reward_scale(self, reward: Tensor) -> None:
        """Set the scale by which the first rewards have standard deviation 1; later calls keep it."""
        first = scale_of_rewards(spread_of_rewards(reward))
        self.reward_scale = torch.where(self.reward_scale == 0, first, self.reward_scale)

    def _weights_of_steps(self, done: Tensor) -> Tensor:
        """gamma^k, k the steps since the start of the trajectory or of the episode: [H + 1, P, G, A]."""
        discount = self.settings["gamma"].view(-1, 1, 1)
        weight = torch.ones_like(done[0], dtype=self.dtype)
        weights = []
        for done_now in done:
            weights.append(weight)
            weight = torch.where(done_now, 1.0, weight * discount)
        return torch.stack([*weights, weight])

    @torch.no_grad()
    def greedy(self, observation: Observation) -> Tensor:
        bar, account = observation
        p, groups = bar.shape
        mean = self._mean(self.weights(), bar, account.view(p, groups, -1, account.shape[-1]).to(self.dtype))
        return mean.reshape(p, -1, mean.shape[-1])

    def generators(self) -> list[RandomState]:
        return members_of(self._noises, self._shuffles)


class Analytic(DifferentiableAlgorithm):
    """Each iteration takes one gradient step of the actor up

        J = mean over accounts of sum_h gamma^h r_h,   h = 0 .. horizon - 1,

    with a_h = mean scores(s_h) + exploration_noise x noise. Rewards beyond the horizon are ignored.
    """

    def _learn(self, trajectory: Trajectory, rate_factor: RateFactor) -> Metrics:
        weights = self._weights_of_steps(trajectory.done)[:-1]
        discounted_rewards = (trajectory.reward * weights).sum(0) * self.reward_scale.view(-1, 1, 1)
        loss = -discounted_rewards.mean((1, 2))
        norm = self.train_state.gradient_step("actor", loss, rate_factor)
        return {"actor_loss": loss.detach(), "grad_norm": norm}

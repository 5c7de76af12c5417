"""Policy gradients through the market: the analytic policy gradient, and SHAC with a critic beyond the horizon.

The market is differentiable by the actions (fractional shares, proportional buys), so the gradient of the rewards over
a short horizon flows through fills, accounts and later decisions back to the weights. If an episode ends within the
horizon, the gradient ends there and the next episode starts from cash. This is the pathwise derivative,
back-propagation through time truncated to a horizon (`apg` in Freeman et al. 2021, arXiv:2106.13281).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Unpack

import torch

from finrl_pod.market.protocols import DifferentiableVecEnv
from finrl_pod.native.device import on_device
from finrl_pod.random import RandomState, generators, members_of
from finrl_pod.rl.algorithms.base import (
    COMMON_MEMBER_SETTINGS,
    Metrics,
    Population,
    TrainStateAlgorithm,
    scale_of_rewards,
    spread_of_rewards,
)
from finrl_pod.rl.experience import RolloutCollector, gae, to_items
from finrl_pod.rl.networks.inputs import PolicyInputs
from finrl_pod.rl.networks.layers import Params, select_items
from finrl_pod.rl.networks.policies import Policy, PolicySpec, make_policy, with_start
from finrl_pod.rl.optimisation.optimiser import CRITIC_PREFIXES, RateFactor
from finrl_pod.settings.algorithm_configs import DifferentiableConfig, SHACConfig
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


class SHAC(DifferentiableAlgorithm):
    """Each iteration takes one gradient step of the actor up

        J = mean over accounts of sum_h gamma^h r_h + gamma^H V'(s_H)

    (at a truncated episode V' of its final state; after a termination nothing), then `epochs` passes of the critic V
    over the trajectory towards TD(lambda) returns computed with V', then one Polyak update of the target critic V'.
    Rewards are in units of their standard deviation in the first trajectory.
    """

    config: SHACConfig
    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*DifferentiableAlgorithm.MEMBER_SETTINGS, "gae_lambda", "tau")

    def _build(self, critic: Sequence[Mapping[str, Tensor]]) -> None:
        self.train_state.add("critic", critic, target=True)

    def _learn(self, trajectory: Trajectory, rate_factor: RateFactor) -> Metrics:
        reward = trajectory.reward * self.reward_scale.view(-1, 1, 1)
        last, end = self._terminal_values(trajectory)
        weights = self._weights_of_steps(trajectory.done)
        truncated = trajectory.done & ~trajectory.terminated
        discount = self.settings["gamma"].view(-1, 1, 1)
        discounted_rewards = (reward * weights[:-1]).sum(0)
        beyond = torch.where(trajectory.done[-1], 0.0, weights[-1]) * last
        beyond = beyond + torch.where(truncated, weights[:-1] * discount, 0.0).sum(0) * end
        loss = -(discounted_rewards + beyond).mean((1, 2))
        norm = self.train_state.gradient_step("actor", loss, rate_factor)
        target = self._returns(trajectory, reward.detach(), last.detach(), end.detach(), truncated)
        critic_loss = self._fit(trajectory, target, rate_factor)
        self.train_state.polyak_update()
        return {
            "actor_loss": loss.detach(),
            "grad_norm": norm,
            "critic_loss": critic_loss,
            "value": target.mean((0, 2, 3)),
        }

    def _terminal_values(self, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """V' [P, G, A] of the state after the last step, and of the state in which the window of a group ended, if any.

        Differentiable by the account. The window of a group ends at most once in a trajectory.
        """
        views = self.train_state.targets["critic"].views
        last = self._value(views, trajectory.bar[-1] + 1, trajectory.next_accounts[-1].to(self.dtype))
        truncated_groups = (trajectory.done & ~trajectory.terminated).any(-1)  # [H, P, G]
        if not on_device(self.device) and not bool(truncated_groups.any()):  # a GPU would have to be waited for
            return last, torch.zeros_like(last)
        step = truncated_groups.int().argmax(0)  # [P, G]
        bar = trajectory.bar.gather(0, step.unsqueeze(0))[0] + 1
        final_account = torch.zeros_like(trajectory.next_accounts[0])
        for h, account in enumerate(trajectory.next_accounts):
            final_account = torch.where((truncated_groups[h] & (step == h))[..., None, None], account, final_account)
        return last, self._value(views, bar, final_account.to(self.dtype))

    def _value(self, views: Params, bar: Tensor, account: Tensor) -> Tensor:
        """Values [P, K, A] for bars [P, K] and accounts [P, K, A, 1 + N]."""
        features, tradable = self.inputs.of_critic(views, bar)
        return self.policy.value(views, features, account, tradable)

    @torch.no_grad()
    def _returns(self, trajectory: Trajectory, reward: Tensor, last: Tensor, end: Tensor, truncated: Tensor) -> Tensor:
        """TD(lambda) returns [H, P, G, A] of all states of the trajectory, from the target critic."""
        bars = to_items(trajectory.bar)
        states = to_items(torch.stack(list(trajectory.account)))
        values = self._value(self.train_state.targets["critic"].views, bars, states)
        values = values.view(reward.transpose(0, 1).shape).transpose(0, 1)
        next_values = torch.where(truncated, end, torch.cat([values[1:], last.unsqueeze(0)]))
        advantage = gae(
            reward,
            values,
            next_values,
            trajectory.terminated,
            truncated,
            self.settings["gamma"],
            self.settings["gae_lambda"],
        )
        return advantage + values

    def _fit(self, trajectory: Trajectory, target: Tensor, rate_factor: RateFactor) -> Tensor:
        """Fit the critic in `epochs` passes over the trajectory; returns the mean loss [P]."""
        data = [to_items(x) for x in (trajectory.bar, torch.stack(list(trajectory.account)).detach(), target)]
        items = data[0].shape[1]
        size = items // self.config.minibatches
        log = []
        for _ in range(self.config.epochs):
            order = self._shuffles.permutation(items)
            for i in range(self.config.minibatches):
                indices = order[:, i * size : (i + 1) * size]
                bar, account, returns = (select_items(x, indices) for x in data)
                loss = (self._value(self.train_state.views("critic"), bar, account) - returns).square().mean((1, 2))
                self.train_state.gradient_step("critic", loss, rate_factor)
                log.append(loss.detach())
        return torch.stack(log).mean(0)

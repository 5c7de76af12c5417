"""Short-horizon actor-critic (Xu et al. 2022, arXiv:2204.07137): derivative of the market and a terminal critic.

Back-propagation through a long episode is noisy and costly; through a short horizon alone it ignores later rewards. So
the horizon is short and a critic values its last state, also in the derivative of the actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from finrl_pod.native.device import on_device
from finrl_pod.rl.algorithms.analytic import DifferentiableAlgorithm, Trajectory
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.experience.rollout import gae, to_items
from finrl_pod.rl.networks.layers import Params, select_items
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import SHACConfig
from finrl_pod.types import Tensor


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

"""The H-term, an optional term of a policy-gradient loss.

After "Stationary deep reinforcement learning with quantum K-spin Hamiltonian equation" (OpenReview LVum7knUA7g),
H(theta) = -E[ sum_k discount^k r(s_k, a_k) prod_{i <= k} pi(a_i | s_i) ]. A product of densities of K x D numbers
overflows, and a density has a unit. So what is added to the loss, times h_term, is, over L trajectories drawn from a
buffer of the member,

    H(theta) = -1/L sum_l sum_{k < K} discount^k r_lk exp( 1 / (D (k + 1)) sum_{i <= k} log(pi(a_li | s_li) / old_li) )

with D the number of scores that count (1 if discrete), and old the density with which an action was sampled: the
geometric mean, per sampled number, of the relative density. The rewards r are scaled as in training, under
group_baseline less the mean of the accounts of the same group; after the end of an episode they are 0. Where all of
them are negative, lowering H makes even the best trajectories less likely.

The buffer keeps, of every rollout, the L trajectories with the largest sum of discount^k r_k among all stretches of K
steps that begin at a multiple of K, and drops the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.experience import Replay, Rollout
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import OnPolicyConfig
from finrl_pod.types import Tensor

Valid = Callable[[Tensor], Tensor | None]  # scores that count on bars [P, K]: [P, K, 1, D] bool, None if all do


class HTerm:
    """Buffers of the best trajectories of P members, and the H-term of samples from them."""

    def __init__(
        self, config: OnPolicyConfig, spec: PolicySpec, source: RandomSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        """source: draws the trajectories of each member. Raises ConfigError if the buffer does not fit into memory."""
        self.config = config
        self.source = source
        self.device = device
        k = config.h_steps
        account_size = spec.own
        choice = spec.action == "discrete"
        fields = {
            "bar": ((k,), torch.int64),
            "account": ((k, account_size), dtype),
            "action": ((k, 1), torch.int64) if choice else ((k, spec.action_size), dtype),
            "log_probability": ((k,), dtype),
            "reward": ((k,), dtype),
        }
        self.buffer = Replay(
            fields, len(source.members), config.h_buffer, device, setting="agent.h_buffer", what="trajectories"
        )
        self._draws: Iterator[Tensor] = iter(())

    @torch.no_grad()
    def remember(self, rollout: Rollout, reward: Tensor, discount: Tensor, steps: int) -> None:
        """Store the best trajectories of a rollout, and sample for the gradient steps that follow.

        reward: [H, P, G, A] scaled; discount: [P]. All is sampled here, so that skipped steps do not
        shift the random numbers.
        """
        horizon, p, groups, accounts = reward.shape
        k = self.config.h_steps
        over = rollout.terminated | rollout.truncated
        if self.config.group_baseline and accounts > 1:
            reward = reward - reward.mean(-1, keepdim=True)
        parts = horizon // k

        def cut(x: Tensor) -> Tensor:
            """[H, P, G, A, ...] -> [P, parts * G * A, K, ...]"""
            x = x[: parts * k].view(parts, k, *x.shape[1:]).movedim(1, 4)  # [parts, P, G, A, K, ...]
            return x.transpose(0, 1).reshape(p, parts * groups * accounts, k, *x.shape[5:])

        ends = cut(over.to(reward.dtype))
        before = ends.cumsum(2) - ends  # episode ends before each step
        episode_rewards = torch.where(before == 0, cut(reward), 0.0)
        score = (episode_rewards * self._powers(discount)).sum(2)  # [P, M]
        best = score.topk(min(self.config.h_trajectories, score.shape[1], self.buffer.capacity), 1).indices
        member = torch.arange(p, device=self.device).unsqueeze(1)
        bar = rollout.bar.unsqueeze(-1).expand(horizon, p, groups, accounts)
        parts_of = {"account": rollout.account, "action": rollout.action, "log_probability": rollout.log_probability}
        columns = {name: cut(x)[member, best] for name, x in parts_of.items()}
        self.buffer.add({"bar": cut(bar)[member, best], "reward": episode_rewards[member, best], **columns})
        size = (steps, self.config.h_trajectories)
        self._draws = iter(self.source.integers(self.buffer.count, size, dim=1))

    def energy(
        self,
        log_probability: Callable[[Tensor, Tensor, Tensor], Tensor],
        discount: Tensor,
        valid: Valid = lambda _: None,
    ) -> Tensor:
        """H [P] of the next L trajectories sampled for each member, differentiable by the policy.

        log_probability: [P, K, A] of actions [P, K, A, D] in bars [P, K] and accounts [P, K, A, 1 + N].
        """
        indices = next(self._draws).unsqueeze(0)
        trajectories = {name: x[0] for name, x in self.buffer.take(indices).items()}  # [P, L, K, ...]
        p, size, k = trajectories["reward"].shape
        flat = (p, size * k, 1)  # every step is an item of one account
        now = log_probability(
            trajectories["bar"].view(p, size * k),
            trajectories["account"].view(*flat, -1),
            trajectories["action"].view(*flat, -1),
        )
        log_ratio = now.view(p, size, k) - trajectories["log_probability"]
        counts = valid(trajectories["bar"].view(p, size * k))
        if counts is None:
            steps = torch.arange(1, k + 1, device=self.device, dtype=log_ratio.dtype)
            numbers = steps * trajectories["action"].shape[-1]
        else:
            numbers = counts.sum(-1).view(p, size, k).cumsum(2).clamp(min=1)
        likeness = (log_ratio.cumsum(2) / numbers).exp()
        return -(self._powers(discount) * trajectories["reward"] * likeness).sum(2).mean(1)

    def _powers(self, discount: Tensor) -> Tensor:
        """discount^k for each member: [P, 1, K]."""
        steps = torch.arange(self.config.h_steps, device=self.device, dtype=discount.dtype)
        return discount.view(-1, 1, 1) ** steps

    def state(self, since: int) -> dict[str, Tensor]:
        """State of the slots, see `Algorithm.slot_state`."""
        counts = torch.tensor([self.buffer.written, 0, 0])
        return {"counts": counts, **self.buffer.latest(self.buffer.written - since)}

"""The H-term: an addition to the loss of a policy gradient that keeps good trajectories likely.

After "Stationary deep reinforcement learning with quantum K-spin Hamiltonian equation" (OpenReview LVum7knUA7g), which
unrolls the Bellman recursion over K steps and reads it as the energy of a system of K spins,

    H(theta) = -E[ sum_k discount^k r(s_k, a_k) prod_{i <= k} pi(a_i | s_i) ].

A product of densities of K x D numbers under- or overflows, and a density has a unit. What is computed here instead is,
for each member, over L trajectories drawn from its buffer,

    H(theta) = -1/L sum_l sum_{k < K} discount^k r_lk exp( 1 / (D (k + 1)) sum_{i <= k} log(pi(a_li | s_li) / old_li) )

where D is how many numbers an action has (one for a choice) and old the density with which it was drawn: the product is
the geometric mean, for each number that was drawn, of the density relative to that of the policy that drew it, so that
every factor is 1 when a trajectory is new. The rewards r are as the agent counts them: under scale_rewards in units of
their standard deviation in the first rollout, under group_baseline less the mean of the accounts that lived through the
same step; behind the end of an episode they are 0. Where all of them are negative, as on Pendulum, lowering H makes
even the best trajectories less likely: the term is for rewards around a baseline.

The buffer keeps, of every rollout, the L trajectories with the largest sum of discount^k r_k among all stretches of K
steps that begin at a multiple of K, and forgets the oldest. The loss gains h_term x H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from finrl_pod.agents import OnPolicyConfig
from finrl_pod.rl.networks import PolicySpec
from finrl_pod.rl.replay import Replay
from finrl_pod.rl.rollout import Rollout
from finrl_pod.types import Tensor

# Log-probability [P, K, A] of actions [P, K, A, D] in days [P, K] and accounts [P, K, A, 1 + N].
LogProbability = Callable[[Tensor, Tensor, Tensor], Tensor]


class HTerm:
    """The buffers of good trajectories of P members, and H of a draw from them."""

    def __init__(
        self,
        config: OnPolicyConfig,
        spec: PolicySpec,
        streams: Sequence[torch.Generator],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """streams: one a member, for its draws. Raises ConfigError where the buffer would not fit into memory."""
        self.config, self.streams, self.device = config, streams, device
        k, seen = config.h_steps, spec.own
        choice = spec.action == "discrete"
        fields = {
            "day": ((k,), torch.int64),
            "account": ((k, seen), dtype),
            "action": ((k, 1), torch.int64) if choice else ((k, spec.action_size), dtype),
            "log_probability": ((k,), dtype),
            "reward": ((k,), dtype),
        }
        self.buffer = Replay(
            fields, len(streams), config.h_buffer, device, setting="agent.h_buffer", what="trajectories"
        )
        self._draws: Iterator[Tensor] = iter(())

    @torch.no_grad()
    def remember(self, rollout: Rollout, reward: Tensor, discount: Tensor, steps: int) -> None:
        """Keep the best trajectories of a rollout, and draw for the gradient steps that follow on it.

        reward: [H, P, G, A] scaled; discount: [P]. All is drawn here, so that steps which are left out shift nothing.
        """
        horizon, p, groups, accounts = reward.shape
        k, over = self.config.h_steps, rollout.terminated | rollout.truncated
        if self.config.group_baseline and accounts > 1:
            reward = reward - reward.mean(-1, keepdim=True)
        parts = horizon // k

        def cut(x: Tensor) -> Tensor:
            """[H, P, G, A, ...] -> [P, parts * G * A, K, ...]"""
            x = x[: parts * k].view(parts, k, *x.shape[1:]).movedim(1, 4)  # [parts, P, G, A, K, ...]
            return x.transpose(0, 1).reshape(p, parts * groups * accounts, k, *x.shape[5:])

        ended = cut(over.to(reward.dtype))
        before = ended.cumsum(2) - ended  # ends before each step
        earned = torch.where(before == 0, cut(reward), 0.0)
        score = (earned * self._powers(discount)).sum(2)  # [P, M]
        best = score.topk(min(self.config.h_trajectories, score.shape[1], self.buffer.capacity), 1).indices
        member = torch.arange(p, device=self.device).unsqueeze(1)
        day = rollout.day.unsqueeze(-1).expand(horizon, p, groups, accounts)
        parts_of = {"account": rollout.account, "action": rollout.action, "log_probability": rollout.log_probability}
        chosen = {name: cut(x)[member, best] for name, x in parts_of.items()}
        self.buffer.add({"day": cut(day)[member, best], "reward": earned[member, best], **chosen})
        size = (steps, self.config.h_trajectories)
        each = [torch.randint(self.buffer.count, size, generator=s, device=self.device) for s in self.streams]
        self._draws = iter(torch.stack(each, 1))

    def energy(self, log_probability: LogProbability, discount: Tensor) -> Tensor:
        """H [P] of the next L trajectories that each member drew from its buffer, with gradients by the policy."""
        chosen = next(self._draws).unsqueeze(0)
        drawn = {name: x[0] for name, x in self.buffer.take(chosen).items()}  # [P, L, K, ...]
        p, size, k = drawn["reward"].shape
        flat = (p, size * k, 1)  # every step is an item of one account
        now = log_probability(
            drawn["day"].view(p, size * k), drawn["account"].view(*flat, -1), drawn["action"].view(*flat, -1)
        )
        moved = now.view(p, size, k) - drawn["log_probability"]
        steps = torch.arange(1, k + 1, device=self.device, dtype=moved.dtype)
        likeness = (moved.cumsum(2) / (steps * drawn["action"].shape[-1])).exp()
        return -(self._powers(discount) * drawn["reward"] * likeness).sum(2).mean(1)

    def _powers(self, discount: Tensor) -> Tensor:
        """discount^k for each member: [P, 1, K]."""
        steps = torch.arange(self.config.h_steps, device=self.device, dtype=discount.dtype)
        return discount.view(-1, 1, 1) ** steps

    def state(self, since: int) -> dict[str, Tensor]:
        """What a slot keeps: see `Algorithm.slot_state`."""
        counts = torch.tensor([self.buffer.written, 0, 0])
        return {"counts": counts, **self.buffer.latest(self.buffer.written - since)}

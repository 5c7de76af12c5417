"""The worker: steps environments with a policy and fills a rollout. No host synchronisation inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from finrl_pod.rl.rollout import Rollout
from finrl_pod.types import Observation, Tensor

Explore = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Worker:
    """Keeps the current observation of P x G x A environments and collects rollouts of H steps."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        self.observation: Observation = env.reset(seed)

    @torch.no_grad()
    def collect(self, explore: Explore, noise: Tensor) -> Rollout:
        """explore(day [P, G], account [P, G, A, 1 + N], noise [P, G, A, D]) -> (action, its log-probability).

        noise: [H, P, G, A, D], standard normal; the rollout's numbers are of its dtype, whatever the environment's.
        """
        env, horizon, dtype = self.env, noise.shape[0], noise.dtype
        shape = (env.members, env.groups, env.accounts)
        steps: list[tuple[Tensor, ...]] = []
        ends = self.observation
        for h in range(horizon):
            day, account = self.observation
            account = account.view(*shape, -1).to(dtype)
            action, chance = explore(day, account, noise[h])
            out = env.step(action.view(env.members, env.envs, -1))
            over = out.truncated.view(shape).any(-1)
            final_day, final_account = out.final_observation
            wide = over.unsqueeze(-1).expand(shape).reshape(env.members, env.envs, 1)
            ends = Observation(torch.where(over, final_day, ends.day), torch.where(wide, final_account, ends.account))
            steps.append(
                (
                    day,
                    account,
                    action,
                    chance,
                    out.reward.view(shape).to(dtype),
                    out.terminated.view(shape),
                    out.truncated.view(shape),
                    over,
                )
            )
            self.observation = out.observation
        stacked = (torch.stack(x) for x in zip(*steps, strict=True))
        day, account, action, chance, reward, terminated, truncated, over = stacked
        last, ends = (Observation(x.day, x.account.to(dtype)) for x in (self.observation, ends))
        return Rollout(day, account, action, chance, reward, terminated, truncated, last, ends, over)

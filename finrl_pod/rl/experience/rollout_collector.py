"""Collects rollouts: steps environments with a policy, without synchronising with the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from finrl_pod.market.protocols import MarketVecEnv, group_shape
from finrl_pod.native.device import on_device
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.experience.rollout import Rollout
from finrl_pod.rl.optimisation.normalisation import IdentityNormaliser
from finrl_pod.types import EnvStep, Observation, Tensor

Explore = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class ObservationNormaliser(Protocol):
    """Normalises observations and rewards between an environment and an agent."""

    def start(self, observation: Any) -> None:
        """Record the first observation of a run."""
        ...

    def normalise(self, observation: Any) -> Any:
        """Normalised observation, by the current statistics."""
        ...

    def update(self, out: EnvStep) -> Tensor:
        """Update the statistics with a step; returns its normalised rewards [P, E]."""
        ...


IDENTITY = IdentityNormaliser()


class RolloutCollector:
    """Keeps the current observation of P x G x A environments and collects rollouts of H steps."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        self.env = env
        self.shape = group_shape(env)  # (P, G, A)
        self.observation: Any = env.reset(seed)
        self._kept: Observation | None = None

    @torch.no_grad()
    def collect(
        self,
        explore: Explore,
        noise: Tensor,
        normaliser: ObservationNormaliser = IDENTITY,
        account_dtype: torch.dtype | None = None,
    ) -> Rollout:
        """Collect a rollout of H steps.

        explore: (bar [P, G], account [P, G, A, 1 + N], noise [P, G, A, D]) -> (action, its log-probability).

        noise: [H, P, G, A, D], of the policy's distribution; the rollout has its dtype. normaliser: applied to
        observations and rewards before they are stored. account_dtype: of the accounts that are decided on and stored,
        that of the noise if None.
        """
        env, horizon, dtype = self.env, noise.shape[0], noise.dtype
        kept_dtype = account_dtype or dtype
        shape = self.shape
        buffer: list[Tensor] = []
        normaliser.start(self.observation)
        finals = _FinalObservations(self, as_pair(normaliser.normalise(self.observation)))
        if isinstance(env, MarketVecEnv):
            env.reuse_buffers(True)  # everything that is stored is copied
        try:
            for h in range(horizon):
                bar, account = as_pair(normaliser.normalise(self.observation))
                account = account.view(*shape, -1).to(kept_dtype)
                action, log_prob = explore(bar, account, noise[h])
                decided = (bar, account, action, log_prob)
                if not buffer:
                    buffer = [_empty_rollout(horizon, x, kept_dtype if x is account else dtype) for x in decided]
                for kept, x in zip(
                    buffer, decided, strict=False
                ):  # before the step, which may overwrite the observation
                    kept[h] = x
                out = env.step(action.view(env.members, env.envs, -1))
                reward = normaliser.update(out)
                truncated = out.truncated.view(shape)
                truncated_groups = truncated.any(-1)
                finals.record(truncated_groups, as_pair(normaliser.normalise(out.final_observation)))
                earned = (reward.view(shape), out.terminated.view(shape), truncated, truncated_groups)
                if h == 0:
                    buffer += [_empty_rollout(horizon, x, dtype) for x in earned]
                for kept, x in zip(buffer[len(decided) :], earned, strict=True):
                    kept[h] = x
                self.observation = out.observation
        finally:
            if isinstance(env, MarketVecEnv):
                env.reuse_buffers(False)
            self.observe(self.observation)
        now = as_pair(normaliser.normalise(self.observation))
        last, *rounds = (Observation(x.bar, x.account.to(kept_dtype)) for x in (now, *finals.rounds))
        bar, account, action, log_prob, reward, terminated, truncated, truncated_groups = buffer
        return Rollout(
            bar, account, action, log_prob, reward, terminated, truncated, last, tuple(rounds), truncated_groups
        )

    def observe(self, observation: Any) -> None:
        """Continue from an observation. It is copied, since later steps overwrite it; on a GPU to the same tensors."""
        kept = self._kept
        if isinstance(observation, Observation) and on_device(observation.bar.device):
            if kept is None:
                kept = self._kept = _copy(observation)
            for x, new in zip(kept, observation, strict=True):
                x.copy_(new)
            self.observation = kept
        else:
            self.observation = _copy(observation)


def _copy(observation: Any) -> Any:
    """Copy of an observation, which later steps do not overwrite."""
    if isinstance(observation, Observation):
        return Observation(*(x.clone() for x in observation))
    return observation.clone()


def _empty_rollout(horizon: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Empty tensor [H, *like]; floating-point numbers get `dtype`."""
    return like.new_empty(horizon, *like.shape, dtype=dtype if like.is_floating_point() else like.dtype)


def as_pair(observation: Any) -> Observation:
    """Observation as (bar, account); flat rows [P, E, S] become accounts of bar 0."""
    if isinstance(observation, Observation):
        return observation
    return Observation(observation.new_zeros(observation.shape[:2], dtype=torch.int64), observation)


class _FinalObservations:
    """Final observations of truncated groups, in rounds: the first of every group, the second, ..."""

    def __init__(self, collector: RolloutCollector, like: Observation) -> None:
        self._shape, self.rounds = collector.shape, [like]
        # A market's windows are at least as long as a rollout, so one round is enough.
        self._count = None if isinstance(collector.env, MarketVecEnv) else torch.zeros_like(like.bar)

    def record(self, truncated_groups: Tensor, final: Observation) -> None:
        """Record final observations of the groups in truncated_groups: [P, G] bool."""
        if self._count is None:
            self._put(0, truncated_groups, final)
            return
        if not bool(truncated_groups.any()):
            return
        while len(self.rounds) <= int(self._count[truncated_groups].max()):
            self.rounds.append(self.rounds[0])
        for r in range(len(self.rounds)):
            self._put(r, truncated_groups & (self._count == r), final)
        self._count += truncated_groups

    def _put(self, r: int, where: Tensor, final: Observation) -> None:
        kept = self.rounds[r]
        wide = where.unsqueeze(-1).expand(self._shape).reshape(kept.account.shape[:2]).unsqueeze(-1)
        self.rounds[r] = Observation(
            torch.where(where, final.bar, kept.bar), torch.where(wide, final.account, kept.account)
        )

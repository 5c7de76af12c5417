"""Rollouts, generalised advantage estimation (Schulman et al. 2016), replay buffers, and returns of episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.protocols import MarketVecEnv, group_shape
from finrl_pod.memory import available_bytes
from finrl_pod.native.device import on_device, one_thread
from finrl_pod.protocols import PooledVecEnv, VecEnv
from finrl_pod.random import Steps
from finrl_pod.rl.optimisation.normalisation import RunningNormaliser
from finrl_pod.types import Observation, Tensor

Explore = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MAX_STEPS = 30_000  # of an episode, more than usual time limits: the longest of Gymnasium are 27,000, of Atari


class Rollout(NamedTuple):
    """H steps of P members, G groups of A accounts. Market features are not copied: bars index the feature table.

    bar: [H, P, G] int64; account: [H, P, G, A, 1 + N]; action: [H, P, G, A, D]; log_probability, reward: [H, P, G, A];
    terminated, truncated: [H, P, G, A] bool; last: observation after the last step.
    truncated_groups: [H, P, G] bool, steps at which the window or episode of a group was truncated.
    final_observations: observations before the resets, the r-th of each group in final_observations[r]: (bar [P, G],
    account [P, E, 1 + N]). On a market there is at most one. Flat observations are stored as accounts of bar 0, one
    environment a group.
    """

    bar: Tensor
    account: Tensor
    action: Tensor
    log_probability: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    last: Observation
    final_observations: tuple[Observation, ...]
    truncated_groups: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: Tensor,
    gae_lambda: Tensor,
) -> Tensor:
    """Generalised advantage estimates [H, P, ...].

    rewards, values: [H, P, ...]; next_values: [H, P, ...], values of the states that the steps led to, before any reset
    (a truncated episode is bootstrapped from its final state). terminated, truncated: [H, P, ...] bool.
    discount, gae_lambda: [P].

        delta_h = r_h + discount * V(s_{h+1}) * (not terminated) - V(s_h)
        A_h = delta_h + discount * lambda * (neither terminated nor truncated) * A_{h+1}
    """
    shape = (-1, *[1] * (rewards.dim() - 2))
    decay = (discount * gae_lambda).view(shape)
    deltas = rewards + discount.view(shape) * next_values * (~terminated) - values
    carry = decay * ~(terminated | truncated)
    advantages = torch.empty_like(rewards)
    advantage = torch.zeros_like(rewards[0])
    for h in range(rewards.shape[0] - 1, -1, -1):
        advantage = deltas[h] + carry[h] * advantage
        advantages[h] = advantage
    return advantages


def to_items(x: Tensor) -> Tensor:
    """[H, P, G, ...] -> [P, H * G, ...]."""
    horizon, p, groups = x.shape[:3]
    return x.transpose(0, 1).reshape(p, horizon * groups, *x.shape[3:])


class RolloutCollector:
    """Steps P x G x A environments with a policy, without synchronising with the device."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        self.env = env
        self.shape = group_shape(env)  # (P, G, A)
        self.observation: Any = env.reset(seed)
        self._buffer: Observation | None = None  # on a GPU: a copy of the current observation at a fixed address

    @torch.no_grad()
    def collect(
        self,
        explore: Explore,
        noise: Steps,
        normaliser: RunningNormaliser | None = None,
        account_dtype: torch.dtype | None = None,
    ) -> Rollout:
        """Collect a rollout of H steps.

        explore: (bar [P, G], account [P, G, A, 1 + N], noise [P, G, A, D]) -> (action, its log-probability).

        noise: [H, P, G, A, D] of the distribution of the policy; the rollout has its dtype. normaliser: applied to
        observations and rewards before they are stored. account_dtype: dtype of the accounts that are decided on and
        stored; the dtype of the noise if None.
        """
        env = self.env
        account_dtype = account_dtype or noise.dtype
        if normaliser is not None:
            normaliser.start(self.observation)
        decisions = _Columns(len(noise))
        outcomes = _Columns(len(noise))
        finals = _FinalObservations(self, as_pair(self.observation, normaliser))
        if isinstance(env, MarketVecEnv):
            env.reuse_buffers(True)  # everything that is stored is copied
        try:
            for h, step_noise in enumerate(noise):
                bar, account = as_pair(self.observation, normaliser)
                account = account.view(*self.shape, -1).to(account_dtype)
                action, log_prob = explore(bar, account, step_noise)
                decisions.store(h, account, bar, action, log_prob)  # before the step may overwrite the observation
                out = env.step(action.view(env.members, env.envs, -1))
                reward = out.reward if normaliser is None else normaliser.update(out)
                truncated = out.truncated.view(self.shape)
                truncated_groups = truncated.any(-1)
                finals.record(truncated_groups, as_pair(out.final_observation, normaliser))
                terminated = out.terminated.view(self.shape)
                outcomes.store(h, reward.view(self.shape).to(noise.dtype), terminated, truncated, truncated_groups)
                self.observation = out.observation
        finally:
            if isinstance(env, MarketVecEnv):
                env.reuse_buffers(False)
            self.observe(self.observation)
        last, *rounds = (
            Observation(x.bar, x.account.to(account_dtype))
            for x in (as_pair(self.observation, normaliser), *finals.rounds)
        )
        accounts, bars, actions, log_probs = decisions.columns
        rewards, terminations, truncations, groups = outcomes.columns
        return Rollout(
            bars, accounts, actions, log_probs, rewards, terminations, truncations, last, tuple(rounds), groups
        )

    def observe(self, observation: Any) -> None:
        """Continue from an observation. It is copied, since later steps overwrite it; on a GPU to the same tensors."""
        if not isinstance(observation, Observation):
            self.observation = observation.clone()
        elif on_device(observation.bar.device) and self._buffer is not None:
            for column, new_column in zip(self._buffer, observation, strict=True):
                column.copy_(new_column)
            self.observation = self._buffer
        else:
            self.observation = Observation(*(x.clone() for x in observation))
            if on_device(observation.bar.device):
                self._buffer = self.observation


class _Columns:
    """Tensors [H, ...] allocated by the first row."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.columns: list[Tensor] = []

    def store(self, h: int, *row: Tensor) -> None:
        """Store the values of step h."""
        if not self.columns:
            self.columns = [x.new_empty(self.horizon, *x.shape) for x in row]
        for column, x in zip(self.columns, row, strict=True):
            column[h] = x


def as_pair(observation: Any, normaliser: RunningNormaliser | None = None) -> Observation:
    """Observation as (bar, account), normalised; flat rows [P, E, S] become accounts of bar 0."""
    if normaliser is not None:
        observation = normaliser.normalise(observation)
    if isinstance(observation, Observation):
        return observation
    return Observation(observation.new_zeros(observation.shape[:2], dtype=torch.int64), observation)


class _FinalObservations:
    """Final observations of truncated groups, in rounds: the first of every group, the second, ..."""

    def __init__(self, collector: RolloutCollector, first: Observation) -> None:
        self._shape = collector.shape
        self.rounds = [first]
        # The windows of a market are at least as long as a rollout, so one round is enough.
        self._count = None if isinstance(collector.env, MarketVecEnv) else torch.zeros_like(first.bar)

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

    def _put(self, r: int, groups: Tensor, final: Observation) -> None:
        previous = self.rounds[r]
        rows = groups.unsqueeze(-1).expand(self._shape).reshape(previous.account.shape[:2]).unsqueeze(-1)
        self.rounds[r] = Observation(
            torch.where(groups, final.bar, previous.bar), torch.where(rows, final.account, previous.account)
        )


class EpisodeReturns(NamedTuple):
    """Returns of episodes, [P, E] float64 on the CPU.

    cut: [P, E] bool, True for an episode that did not end within `MAX_STEPS`; its return is the sum until then.
    """

    returns: Tensor
    cut: Tensor


@torch.no_grad()
@one_thread()
def episode_returns(
    env: VecEnv, act: Callable[[Any], Tensor], seed: int, after_step: Callable[[], None] = lambda: None
) -> EpisodeReturns:
    """Return of the first episode of every environment, cut off after `MAX_STEPS`.

    act: observation -> actions [P, E, D]. after_step: called after every step; its errors are passed on. Raises
    RunError if a worker of the environment is lost.
    """
    observation = env.reset(seed)
    totals = torch.zeros(env.members, env.envs, dtype=torch.float64)
    is_running = torch.ones(env.members, env.envs, dtype=torch.bool)
    for _ in range(MAX_STEPS):
        step = env.step(act(observation))
        if isinstance(env, PooledVecEnv) and env.worker_restarts:
            raise RunError("a worker was lost during the evaluation")
        after_step()
        totals += torch.where(is_running, step.reward.cpu().double(), 0.0)
        is_running &= ~(step.terminated | step.truncated).cpu()
        if not bool(is_running.any()):
            break
        observation = step.observation
    return EpisodeReturns(totals, is_running)


Fields = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
GIB = 2**30


class Replay:
    """Ring buffer of [P, C, ...] tensors by name; the oldest items are overwritten.

    written: items ever written for each member; count: items available.
    """

    def __init__(
        self,
        fields: Fields,
        members: int,
        capacity: int,
        device: torch.device,
        accounts: int = 1,
        *,
        setting: str = "agent.buffer_size",
        what: str = "transitions",
    ) -> None:
        """fields: name -> (shape of an item, dtype). capacity: items per member. accounts: transitions in an item.

        setting, what: name of the capacity setting and the unit it counts, for error messages.

        Raises ConfigError before allocating if the buffer does not fit into memory.
        """
        size = members * capacity * sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields.values())
        free = available_bytes(device)
        if size > free:
            raise ConfigError(
                f"{setting} of {capacity * accounts:,} {what} for {members} "
                f"member{'s' if members > 1 else ''} takes {size / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; "
                f"lower it to {int(capacity * accounts * free * 0.8 / size):,} or less"
            )
        self.members = members
        self.capacity = capacity
        self.written = 0
        self.data = {
            name: torch.zeros(members, capacity, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in fields.items()
        }

    @property
    def count(self) -> int:
        """Items available for each member."""
        return min(self.written, self.capacity)

    def add(self, items: Mapping[str, Tensor]) -> None:
        """Append name -> [P, n, ...]; n must not exceed the capacity."""
        n = next(iter(items.values())).shape[1]
        start = self.written % self.capacity
        fits = min(n, self.capacity - start)
        for name, field in self.data.items():
            values = items[name]
            field[:, start : start + fits] = values[:, :fits]
            if fits < n:
                field[:, : n - fits] = values[:, fits:]
        self.written += n

    def take(self, indices: Tensor) -> dict[str, Tensor]:
        """Items at indices [U, P, K]: name -> [U, P, K, ...]."""
        u, p, k = indices.shape
        if p == 1:
            places = indices.reshape(-1)
            return {name: x[0].index_select(0, places).view(u, 1, k, *x.shape[2:]) for name, x in self.data.items()}
        member = torch.arange(p, device=indices.device).view(1, p, 1)
        return {name: x[member, indices] for name, x in self.data.items()}

    def latest(self, items: int) -> dict[str, Tensor]:
        """Copies of the last `items` items, oldest first: name -> [P, n, ...]."""
        n = min(items, self.count)
        places = torch.arange(self.written - n, self.written) % self.capacity
        return {name: x[:, places.to(x.device)] for name, x in self.data.items()}

    def load(self, items: Mapping[str, Tensor], written: int) -> None:
        """Restore the result of `latest` of a buffer with `written` items. Raises RunError if it does not fit."""
        for name, field in self.data.items():
            values = items.get(name)
            if values is None or values.shape[0] != self.members or values.shape[2:] != field.shape[2:]:
                saved_shape = "nothing" if values is None else f"shape {tuple(values.shape)}"
                raise RunError(f"the saved replay buffer does not fit this agent: {name} has {saved_shape}")
        n = items[next(iter(self.data))].shape[1]
        if n != min(written, self.capacity):
            raise RunError(
                f"the saved replay buffer does not fit this agent: it has {n} items, expected "
                f"{min(written, self.capacity)}; use the agent.buffer_size it was saved with"
            )
        self.written = written - n
        self.add({name: items[name].to(field) for name, field in self.data.items()})

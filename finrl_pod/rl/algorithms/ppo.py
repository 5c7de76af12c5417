"""Proximal policy optimisation (Schulman et al. 2017) for P members in one program.

Reads from top to bottom: `iterate` collects a rollout, `update` computes advantages, flattens the rollout into items
and takes epochs of minibatches, `_minibatch` is one clipped gradient step.

Shapes: H steps, P members, G groups of A accounts, I = H * G items, M items of a minibatch, D scores, W parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.native.device import on_device
from finrl_pod.random import RandomState, Steps, generators, members_of
from finrl_pod.rl.algorithms.base import (
    COMMON_MEMBER_SETTINGS,
    Metrics,
    Population,
    TrainedAlgorithm,
    scale_of_rewards,
    spread_of_rewards,
)
from finrl_pod.rl.algorithms.h_term import HTerm
from finrl_pod.rl.experience import Rollout, RolloutCollector, as_pair, gae, to_items
from finrl_pod.rl.fused.device_policy import DevicePolicy, make_device_policy
from finrl_pod.rl.fused.kernels import PolicyKernel, make_policy_kernel
from finrl_pod.rl.networks.distributions import StateNoise, StateNoisePolicy, distribution_of, valid_scores
from finrl_pod.rl.networks.inputs import PolicyInputs
from finrl_pod.rl.networks.layers import Params, select_items
from finrl_pod.rl.networks.policies import Policy, PolicyInit, PolicySpec, make_policy, with_start
from finrl_pod.rl.optimisation.normalisation import RunningNormaliser
from finrl_pod.rl.optimisation.optimiser import (
    Adam,
    Optimiser,
    Parameters,
    RateFactor,
    RMSprop,
    WeightDecay,
    clip_by_member,
)
from finrl_pod.settings.algorithm_configs import OnPolicyConfig, PPOConfig
from finrl_pod.types import Tensor

ROLLOUT_SETTINGS = (
    *COMMON_MEMBER_SETTINGS,
    "gae_lambda",
    "entropy_coefficient",
    "value_coefficient",
    "max_grad_norm",
    "h_term",
)
MEMBER_SETTINGS = (*ROLLOUT_SETTINGS, "clip_range", "target_kl")
# On a CPU a minibatch is processed in chunks whose widest layer has this many numbers, so that activations stay in the
# cache. One core, 8 members, 20 assets: 12,500 samples/s whole, 30,000 in chunks.
CACHE_FLOATS = 1_000_000
DEVICE_FLOATS = 500_000_000  # the same on a GPU: 2 GB, several of which autograd keeps
ENCODER_SHARE = 8  # a window counts for so many times less: short passes of encoders cost more than the cache
ENTROPY_ITEMS = 256  # items over which the reported entropy is averaged
MIN_VARIANCE = 1e-12
DIAGNOSTICS = ("approx_kl", "clip_fraction", "policy_loss", "value_loss", "grad_norm")  # of a minibatch
ADVANTAGE_EPSILON = 1e-8


class PPO(TrainedAlgorithm):
    """PPO of P members: parameters, optimiser state and settings, on one market table."""

    config: OnPolicyConfig
    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = MEMBER_SETTINGS

    def __init__(
        self,
        spec: PolicySpec,
        features: Tensor,
        tradable: Tensor | None,
        config: OnPolicyConfig,
        **population: Unpack[Population],
    ) -> None:
        """features: [T, N, F], the market table; tradable: [T, N] bool, or None if every asset always is."""
        super().__init__(spec, config, features.device, **population)
        self.inputs = PolicyInputs(spec, features.to(self.dtype), tradable)
        self.features = self.inputs.features
        self.tradable = tradable
        self.policy: Policy = StateNoisePolicy(spec) if config.use_sde else make_policy(spec)
        noise = StateNoise(spec.hidden[-1], config.sde_sample_freq)
        self.distribution = noise if config.use_sde else distribution_of(spec.action)
        init = PolicyInit(config.log_std_init, config.orthogonal_init)
        initial = [
            {**self.policy.init(generator, self.dtype, init), **self.inputs.init(generator, self.dtype)}
            for generator in generators(self.seed, self.member_ids, "initial weights")
        ]
        self.parameters = Parameters(with_start(initial, self.start), self.device)
        optimiser = RMSprop if config.optimiser == "rmsprop" else Adam
        self.optimiser: Optimiser = optimiser(self.parameters.flat, config.optimiser_epsilon)
        self._decay = WeightDecay(self.parameters, config.weight_decay, is_anchored=self.start is not None)
        self.running = RunningNormaliser(self.settings["gamma"], spec.own, self.dtype) if config.normalise else None
        self.h_term: HTerm | None = None  # buffers of the H-term, None while it is off
        if self.settings["h_term"].any():
            self.h_term = HTerm(config, spec, self._source("h-term"), self.dtype, self.device)
        self._kernel = self._make_kernel()
        self.account_dtype = self._kernel.dtype if isinstance(self._kernel, DevicePolicy) else self.dtype
        self.alive = self._all_alive()
        self._clip_factor: RateFactor = 1.0
        self._step_settings = self.settings  # of the gradient steps of the current update
        self._shuffles = self._source("minibatches")

    def _options_without_kernel(self) -> dict[str, bool]:
        """Options that the programs for CPUs and GPUs do not implement; autograd is used where one is on."""
        return {
            "an encoder": self.spec.encoder != "none",
            "gSDE": self.config.use_sde,
            "the H-term": self.h_term is not None,
            "RMSprop": not isinstance(self.optimiser, Adam),
            "ReLUs": self.spec.activation != "tanh",
            "discrete actions": self.spec.action == "discrete",
            "a central critic": self.spec.critic_only > 0,
        }

    def _make_kernel(self) -> DevicePolicy | PolicyKernel | None:
        """The program that acts and learns instead of autograd; None if there is none for the policy or an option."""
        option = next((name for name, is_on in self._options_without_kernel().items() if is_on), "")
        kernel: DevicePolicy | PolicyKernel | None = None
        dtype = torch.bfloat16 if getattr(self.config, "activation_dtype", "") == "bfloat16" else self.dtype
        if not option and on_device(self.device):
            kernel = make_device_policy(self.policy, self.parameters, self.features, self.tradable, dtype)
        elif not option:
            kernel = make_policy_kernel(self.policy, self.parameters, self.features, self.tradable)
        if kernel is None and on_device(self.device) and dtype == torch.bfloat16:
            lack = f"has no program with {option}" if option else "needs a policy of mlp, or equivariant with a mandate"
            raise ConfigError(f"agent.activation_dtype = 'bfloat16' {lack}; set it to 'float32'")
        return kernel

    # ------------------------------------------------------------------ one iteration

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        _, groups, accounts = collector.shape
        noise = self.noise((groups, accounts, self.spec.action_size))  # [H, P, G, A, D]
        return self.update(collector.collect(self.explore, noise, self.running, self.account_dtype), rate_factor)

    def update(self, rollout: Rollout, learning_rate_factor: RateFactor = 1.0) -> Metrics:
        """Learn from one rollout; returns metrics [P]."""
        config = self.config
        assert isinstance(config, PPOConfig)
        self._clip_factor = learning_rate_factor if config.clip_range_schedule == "linear" else 1.0

        # Advantages: values, advantages and value targets [H, P, G, A].
        values, advantage, target = self._advantages(rollout)

        # Flatten: every tensor to items [P, I, ...].
        data = flatten(rollout, advantage, target)
        kernel_data = self._kernel.pack(data) if isinstance(self._kernel, DevicePolicy) else data
        items = rollout.reward.shape[0] * rollout.reward.shape[2]
        size = items // config.minibatches

        # Minibatches. Permutations are drawn for all epochs at once: stopping early must not shift later shuffles.
        permutations = [self._shuffles.permutation(items) for _ in range(config.epochs)]  # [P, I] each
        active = self.alive.clone()  # [P], members within target_kl
        self._step_settings = {
            **self.settings,
            "learning_rate": self.settings["learning_rate"] * learning_rate_factor,
            "clip_range": self.clip,
        }
        log: list[Tensor] = []
        participants: list[Tensor] = []
        for permutation in permutations:
            for i in range(config.minibatches):
                indices = permutation[:, i * size : (i + 1) * size]  # [P, M]
                metrics = self._minibatch(kernel_data, indices, active)
                log.append(metrics)
                participants.append(active)
                active = active & (metrics[0] <= self.settings["target_kl"]) & self.alive
            if not on_device(self.device) and not bool(active.any()):
                break

        # Means over the minibatches that each member took part in; NaN for a member that diverged before.
        took_part = torch.stack(participants).unsqueeze(1)  # [S, 1, P]
        means = torch.where(took_part, torch.stack(log), 0.0).sum(0) / took_part.sum(0)  # [5, P]
        return {
            **dict(zip(DIAGNOSTICS, means, strict=True)),
            "explained_variance": explained_variance(to_items(values), data[-1]),
            "entropy": self.entropy(data),
            "reward": rollout.reward.mean(dim=(0, 2, 3)),
        }

    # ------------------------------------------------------------------ advantages

    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Values, advantages and value targets of a rollout, [H, P, G, A] each; rewards are scaled first."""
        values, next_values = self._values(rollout)
        reward = self._scale_rewards(rollout.reward)
        if self.h_term is not None:
            self.h_term.remember(rollout, reward, self.settings["gamma"], self.gradient_steps)
        advantage = gae(
            reward,
            values,
            next_values,
            rollout.terminated,
            rollout.truncated,
            self.settings["gamma"],
            self.settings["gae_lambda"],
        )
        target = advantage + values
        if self.config.group_baseline and advantage.shape[-1] > 1:
            # Accounts of a group share the same bars: what they have in common was caused by no action.
            advantage = advantage - advantage.mean(-1, keepdim=True)
        return values, advantage, target

    @torch.no_grad()
    def _values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of the states, and of the states that each step led to before any reset: [H, P, G, A] both."""
        horizon, p, groups, accounts = rollout.reward.shape
        final = (rollout.last, *rollout.final_observations)
        final_bar = torch.stack([x.bar for x in final])
        final_account = torch.stack([x.account.view(p, groups, accounts, -1) for x in final])
        if on_device(self.device):  # in parts of the size of a minibatch, whose activations then need no more memory
            steps = -(-horizon // self.minibatches)
            parts = [(rollout.bar[h : h + steps], rollout.account[h : h + steps]) for h in range(0, horizon, steps)]
            parts.append((final_bar, final_account))
        else:  # at once: products of fewer rows may be rounded differently
            parts = [(torch.cat([rollout.bar, final_bar]), torch.cat([rollout.account, final_account]))]
        all_values = torch.cat([self._values_of(*part) for part in parts])  # [H + 1 + final observations, P, G, A]
        next_values = all_values[1 : horizon + 1]
        count = rollout.truncated_groups.cumsum(0)
        for r, end_values in enumerate(all_values[horizon + 1 :]):
            is_end = (rollout.truncated_groups & (count == r + 1)).unsqueeze(-1)
            next_values = torch.where(is_end, end_values, next_values)
        return all_values[:horizon], next_values

    def _values_of(self, bar: Tensor, account: Tensor) -> Tensor:
        """Values [H, P, G, A] for bars [H, P, G] and accounts [H, P, G, A, 1 + N]."""
        value = partial(self._value, self.parameters.views) if self._kernel is None else self._kernel.value
        horizon, p, groups, accounts, _ = account.shape
        return value(to_items(bar), to_items(account)).view(p, horizon, groups, accounts).transpose(0, 1)

    @torch.no_grad()
    def _scale_rewards(self, reward: Tensor) -> Tensor:
        """Rewards divided by their standard deviation in the first rollout, so that values are of order one."""
        if not self.config.scale_rewards:
            return reward
        first = scale_of_rewards(spread_of_rewards(reward))
        self.reward_scale.copy_(torch.where(self.reward_scale == 0, first, self.reward_scale))
        return reward * self.reward_scale.view(1, -1, 1, 1)

    # ------------------------------------------------------------------ one minibatch

    def _minibatch(self, data: Sequence[Tensor], indices: Tensor, active: Tensor) -> Tensor:
        """One gradient step of the active members; returns diagnostics [5, P], the KL before the step first.

        data: result of `flatten` or `pack`; indices: [P, M], the items of the minibatch.
        """
        rate = self._step_settings["learning_rate"]
        if self._kernel is not None:
            assert isinstance(self.optimiser, Adam)
            with self._decay.after_step(self.optimiser, rate):
                return self._kernel.update(data, indices, self._step_settings, self.optimiser, active, self.alive)
        *inputs, advantage, target = (select_items(x, indices) for x in data)
        spread = advantage.std(dim=(1, 2), keepdim=True)
        advantage = (advantage - advantage.mean(dim=(1, 2), keepdim=True)) / (spread + ADVANTAGE_EPSILON)
        return self._step([*inputs, advantage, target], rate, active, self.settings["target_kl"])

    def _step(self, batch: Sequence[Tensor], rate: Tensor, active: Tensor, target_kl: Tensor | None = None) -> Tensor:
        """A clipped gradient step of active members [P]; returns the diagnostics of `_loss` and the norm: [5, P].

        batch: items [P, M, ...] of a rollout; rate: [P]; target_kl: [P], KL above which a member does not move.
        """
        gradient, metrics = self._gradient(batch)
        if self.h_term is not None:
            energy = self.h_term.energy(self._log_probability, self.settings["gamma"], self.valid_scores)
            gradient = gradient + self.parameters.gradient((self.settings["h_term"] * energy).sum(), partial=True)
        kl, _, policy_loss, value_loss = metrics
        gradient, norm = clip_by_member(gradient, self.settings["max_grad_norm"])
        # A member whose loss is NaN or infinite stops here and keeps its parameters. Inactive members are not judged:
        # trained alone, they would not have reached this minibatch.
        finite = torch.isfinite(norm) & torch.isfinite(policy_loss) & torch.isfinite(value_loss)
        self.alive &= finite | ~active
        moves = active & self.alive
        if target_kl is not None:
            moves = moves & (kl <= target_kl)
        with self._decay.after_step(self.optimiser, rate):
            self.optimiser.step(self.parameters.flat, gradient, rate, moves)
        return torch.cat([metrics, norm.unsqueeze(0)])

    def _gradient(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Gradient of the loss [P, W], and the diagnostics of `_loss` [4, P], accumulated over chunks."""
        target = batch[-1]  # [P, M, A]
        p, items, _ = target.shape
        parts = [torch.split(x, self._chunk_items(target), dim=1) for x in batch]
        gradient = torch.zeros_like(self.parameters.flat)
        metrics = target.new_zeros(4, p)
        for chunk in zip(*parts, strict=True):
            share = chunk[0].shape[1] / items
            loss, chunk_metrics = self._loss(chunk)
            gradient += self.parameters.gradient((loss * share).sum())
            metrics += chunk_metrics * share
        return gradient, metrics

    def _loss(self, chunk: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Loss [P] over some items, and their mean (KL, clip fraction, policy loss, value loss) [4, P]."""
        bar, account, action, old_log_prob, advantage, target = chunk
        mean, log_std = self._decide(self.parameters.views, bar, account)
        value = self._value(self.parameters.views, bar, account)
        valid = self.valid_scores(bar)
        log_prob = self.distribution.log_probability(action, mean, log_std, valid)
        log_ratio = log_prob - old_log_prob  # [P, M, A]
        ratio = log_ratio.exp()
        clip = self.clip.view(-1, 1, 1)
        clipped_ratio = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped_ratio * advantage).mean(dim=(1, 2))  # [P]
        value_loss = (value - target).square().mean(dim=(1, 2))  # [P]
        entropy = self.distribution.entropy(mean, log_std, valid)  # [P]
        loss = (
            policy_loss
            + self.settings["value_coefficient"] * value_loss
            - self.settings["entropy_coefficient"] * entropy
        )
        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean(dim=(1, 2))
            clip_fraction = ((ratio - 1).abs() > clip).to(self.dtype).mean(dim=(1, 2))
        return loss, torch.stack([kl, clip_fraction, policy_loss.detach(), value_loss.detach()])

    def _chunk_items(self, like: Tensor) -> int:
        """How many items of [P, M, A] to process at once: as many as fit the cache of a CPU, or a part of a GPU."""
        p, _, accounts = like.shape
        spec = self.spec
        window = spec.lookback * spec.assets * spec.encoder_size / ENCODER_SHARE
        floats = DEVICE_FLOATS if on_device(self.device) else CACHE_FLOATS
        return max(1, int(floats // (p * (accounts * self.policy.width + window))))

    @property
    def minibatches(self) -> int:
        """Minibatches of an epoch."""
        assert isinstance(self.config, PPOConfig)
        return self.config.minibatches

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of an iteration in which no member stops early."""
        assert isinstance(self.config, PPOConfig)
        return self.config.epochs * self.minibatches

    @property
    def clip(self) -> Tensor:
        """Current clip range of the probability ratio: [P]."""
        return self.settings["clip_range"] * self._clip_factor

    # ------------------------------------------------------------------ acting

    def valid_scores(self, bar: Tensor) -> Tensor | None:
        """Scores in the density of actions on bars [P, K]: [P, K, 1, D] bool, None if all are."""
        if self.tradable is None or self.spec.action == "discrete":
            return None
        return valid_scores(self.tradable[bar], self.spec.action_size)

    def act(self, bar: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """Mean scores [P, K, A, D] and their log standard deviation: bar [P, K], account [P, K, A, 1 + N]."""
        views = self.parameters.views
        if self._kernel is not None and not torch.is_grad_enabled():
            return self._kernel.mean(bar, account.to(self.account_dtype)), views["log_std"]
        return self._decide(views, bar, account.to(self.dtype))

    def _decide(self, views: Params, bar: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """`act` with the given weights, differentiable."""
        features, tradable = self.inputs.of_actor(views, bar)
        return self.policy.decide(views, features, account, tradable)

    def _log_probability(self, bar: Tensor, account: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self._decide(self.parameters.views, bar, account)
        return self.distribution.log_probability(action, mean, log_std, self.valid_scores(bar))

    def _value(self, views: Params, bar: Tensor, account: Tensor) -> Tensor:
        """Values [P, K, A] with the given weights, differentiable."""
        features, tradable = self.inputs.of_critic(views, bar)
        return self.policy.value(views, features, account, tradable)

    @torch.no_grad()
    def explore(self, bar: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions sampled with noise [P, K, A, D], and their log-probability [P, K, A]."""
        if self._kernel is not None:
            return self._kernel.sample(bar, account.to(self.account_dtype), noise)
        if isinstance(self.policy, StateNoisePolicy):
            views = self.parameters.views
            features = self.inputs.of_actor(views, bar)[0]
            account = account.to(self.dtype)
            return self.policy.sample(views, features, account, noise, self.valid_scores(bar))
        mean, log_std = self.act(bar, account)
        action = self.distribution.sample(mean, log_std, noise)
        return action, self.distribution.log_probability(action, mean, log_std, self.valid_scores(bar))

    def noise(self, shape: tuple[int, ...]) -> Steps:
        """Exploration noise [H, P, *shape] of the distribution, from the generator of each member."""
        return self.distribution.noise((self.config.horizon, *shape), self._noises, self.dtype)

    @torch.no_grad()
    def entropy(self, data: Sequence[Tensor]) -> Tensor:
        """Entropy [P] of the current policy over the first `ENTROPY_ITEMS` items of the rollout."""
        bar, account = (x[:, :ENTROPY_ITEMS] for x in data[:2])
        mean, log_std = self.act(bar, account)
        return self.distribution.entropy(mean, log_std, self.valid_scores(bar))

    @torch.no_grad()
    def greedy(self, observation: Any) -> Tensor:
        bar, account = as_pair(observation, self.running)
        p, groups = bar.shape
        mean, _ = self.act(bar, account.view(p, groups, -1, account.shape[-1]))
        best = self.distribution.best(mean)
        return best.reshape(p, -1, best.shape[-1])

    # ------------------------------------------------------------------ state

    @property
    def steps_per_iteration(self) -> int:
        return self.config.horizon

    def weights(self) -> dict[str, Tensor]:
        return {**self.parameters.detached(), **(self.running.weights() if self.running else {})}

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        training_state = {**self.optimiser.member(p), "reward_scale": self.reward_scale[p].cpu().clone()}
        statistics, counts = self.running.member(p) if self.running else ({}, {})
        return {**self.parameters.member(p), **statistics}, {**training_state, **counts}

    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:
        self.parameters.load(p, weights)
        self.optimiser.load(p, training_state)
        if self.running is not None:
            self.running.load(p, weights, training_state)
        self.reward_scale[p] = training_state["reward_scale"]

    def generators(self) -> list[RandomState]:
        return members_of(self._shuffles, self._noises, self.h_term.source if self.h_term else None)

    @property
    def slot_items(self) -> int:
        return self.h_term.buffer.capacity if self.h_term else 0

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:
        return self.h_term.state(since) if self.h_term else {}

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        if self.h_term is None:
            super().load_slot_state(state)
        else:
            self.h_term.buffer.load(state, int(state["counts"][0]))


def flatten(rollout: Rollout, advantage: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """A rollout as items: bar [P, I], account [P, I, A, 1 + N], action [P, I, A, D], and [P, I, A] each of the
    log-probability, advantage and value target."""
    each = (rollout.bar, rollout.account, rollout.action, rollout.log_probability, advantage, target)
    return tuple(to_items(x) for x in each)


def explained_variance(values: Tensor, target: Tensor) -> Tensor:
    """Share of the value targets' variance that the critic explains: [P, K, A] both -> [P]."""
    return 1 - (target - values).var(dim=(1, 2)) / target.var(dim=(1, 2)).clamp(min=MIN_VARIANCE)

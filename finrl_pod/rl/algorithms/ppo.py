"""Proximal policy optimisation, Schulman et al. 2017, for P members in one program.

Read from top to bottom: values and advantages of the rollout, then epochs of minibatches, each a clipped update of
every member that has not yet moved too far from the policy that collected the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from finrl_pod.random import generators
from finrl_pod.rl.algorithms.base import COMMON_RANGES, scale_of_rewards, settings_of, spread_of_rewards
from finrl_pod.rl.algorithms.on_policy import OnPolicy
from finrl_pod.rl.algorithms.regularisers import Additions
from finrl_pod.rl.buffers.rollout import Rollout, gae
from finrl_pod.rl.native.policy_kernel import make_policy_kernel
from finrl_pod.rl.networks.distributions import distribution_of
from finrl_pod.rl.networks.policies import Policy, PolicySpec, Start, make_policy
from finrl_pod.rl.networks.state_noise import StateNoise, StateNoisePolicy
from finrl_pod.rl.training.normalisation import Running
from finrl_pod.rl.training.optimiser import Adam, Optimiser, Parameters, RMSprop, clip_by_member
from finrl_pod.settings.algorithm_configs import OnPolicyConfig, PPOConfig
from finrl_pod.settings.constraints import ABOVE_ZERO, FINITE, SHARE, Ranges, at_least
from finrl_pod.types import Tensor

ROLLOUT_RANGES: Ranges = {
    **COMMON_RANGES,
    "gae_lambda": SHARE,
    "entropy_coefficient": FINITE,
    "value_coefficient": at_least(0),
    "max_grad_norm": ABOVE_ZERO,
    "h_term": at_least(0),
    "diversity": at_least(0),
}
RANGES: Ranges = {**ROLLOUT_RANGES, "clip_range": ABOVE_ZERO, "target_kl": ABOVE_ZERO}
MEMBER_SETTINGS = tuple(RANGES)
# On a CPU a minibatch is worked through in pieces whose widest layer has so many numbers: what is written is read again
# while it is still in the cache. One core, 8 members, 20 assets: 12,500 samples/s whole, 30,000 in such pieces.
CACHE_FLOATS = 1_000_000
SEEN = 256  # items over which an entropy is taken
DIAGNOSTICS = (
    "reward",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "entropy",
    "grad_norm",
    "policy_loss",
    "value_loss",
)


class PPO(OnPolicy):
    """The learner: parameters, optimiser and settings of P members on one market table."""

    config: OnPolicyConfig
    RANGES: ClassVar[Ranges] = RANGES

    def __init__(
        self,
        spec: PolicySpec,
        features: Tensor,
        tradable: Tensor | None,
        config: OnPolicyConfig,
        *,
        seed: int = 0,
        members: Sequence[int] = (0,),
        hyperparameters: Sequence[Mapping[str, float]] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """features: the market table [T, N, F]; tradable: [T, N] bool or None when all always are.

        hyperparameters: for each member, values that replace the config's (keys of `RANGES`).
        """
        self.spec, self.config, self.member_ids, self.seed = spec, config, tuple(members), seed
        self.features, self.tradable = features.to(dtype), tradable
        self.device, self.dtype = features.device, dtype
        self.policy: Policy = StateNoisePolicy(spec) if config.use_sde else make_policy(spec)
        noise = StateNoise(spec.hidden[-1], config.sde_sample_freq)
        self.distribution = noise if config.use_sde else distribution_of(spec.action)
        streams = generators(seed, self.member_ids, "initial weights")
        start = Start(config.log_std_init, config.orthogonal_init)
        self.parameters = Parameters([self.policy.init(s, dtype, start) for s in streams], self.device)
        self.optimiser = _optimiser(config, self.parameters.flat)
        p = len(self.member_ids)
        self.settings = settings_of(hyperparameters, config, self.RANGES, p, dtype=dtype, device=self.device)
        self.running = Running(self.settings["gamma"], spec.own, dtype) if config.normalise else None
        self.additions = Additions.of(config, self.settings, self.parameters, self._decide, spec, seed, self.member_ids)
        # The kernels know the loss without additions, and Adam.
        plain = self.additions is None and isinstance(self.optimiser, Adam)
        self._fused = make_policy_kernel(self.policy, self.parameters, self.features, tradable) if plain else None
        self.alive = torch.ones(p, dtype=torch.bool, device=self.device)
        self.reward_scale = torch.zeros(p, dtype=dtype, device=self.device)
        self._clip_factor = 1.0
        self._shuffles = generators(seed, self.member_ids, "minibatches", self.device)
        self._noises = generators(seed, self.member_ids, "actions", self.device)

    def rows(self, day: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows of the market table for days [P, K]: features [P, K, N, F] and the mask [P, K, N] or None."""
        return self.features[day], None if self.tradable is None else self.tradable[day]

    def act(self, day: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """Mean scores and their log standard deviation: day [P, K], account [P, K, A, 1 + N]."""
        views, account = self.parameters.views, account.to(self.dtype)
        if self._fused is not None and not torch.is_grad_enabled():
            return self._fused.mean(day, account), views["log_std"]
        return self._decide(views, day, account)

    def _decide(self, views: Mapping[str, Tensor], day: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """The same by these weights, with gradients."""
        features, tradable = self.rows(day)
        return self.policy.decide(views, features, account, tradable)

    @torch.no_grad()
    def explore(self, day: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        if self._fused is not None:
            return self._fused.sample(day, account.to(self.dtype), noise)
        if isinstance(self.policy, StateNoisePolicy):
            return self.policy.draw(self.parameters.views, self.rows(day)[0], account.to(self.dtype), noise)
        return super().explore(day, account, noise)

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """[H, P, *shape] of what the distribution draws by, from each member's own stream."""
        whole = (self.config.horizon, *shape)
        return torch.stack([self.distribution.noise(whole, s, self.dtype) for s in self._noises], 1)

    # ------------------------------------------------------------------ the update

    def update(self, rollout: Rollout, learning_rate_factor: float = 1.0) -> dict[str, Tensor]:
        """Learn from one rollout; returns diagnostics, [P] each."""
        config = self.config
        assert isinstance(config, PPOConfig)
        self._clip_factor = learning_rate_factor if config.clip_range_schedule == "linear" else 1.0
        data, values = self._examples(rollout)
        target = data[-1]
        items = target.shape[1]
        active = self.alive.clone()
        size = items // config.minibatches
        log: list[Tensor] = []
        took_part: list[Tensor] = []
        # Drawn for every epoch, whether it takes place or not: what stops early must not shift later shuffles.
        orders = [self._shuffled(items) for _ in range(config.epochs)]
        for order in orders:
            for i in range(config.minibatches):
                chosen = order[:, i * size : (i + 1) * size]
                step, kl = self._minibatch(data, chosen, active, learning_rate_factor)
                log.append(step)
                took_part.append(active)
                active = active & (kl <= self.settings["target_kl"]) & self.alive
            if self.device.type == "cpu" and not bool(active.any()):
                break
        # Over the minibatches a member took part in; NaN for a member that took part in none, being broken.
        part = torch.stack(took_part).unsqueeze(1)  # [S, 1, P]
        means = torch.where(part, torch.stack(log), 0.0).sum(0) / part.sum(0)  # [5, P]
        return {
            "approx_kl": means[0],
            "clip_fraction": means[1],
            "policy_loss": means[2],
            "value_loss": means[3],
            "grad_norm": means[4],
            "explained_variance": explained(values, target),
            "entropy": self.entropy(data),
            "reward": rollout.reward.mean(dim=(0, 2, 3)),
        }

    def _examples(self, rollout: Rollout) -> tuple[tuple[Tensor, ...], Tensor]:
        """The rollout as items [P, H * G, A, ...] to learn from, and what the critic said of them [P, H * G, A].

        The items are day, account, action, log-probability, advantage and the value's target.
        """
        horizon, p, groups, accounts = rollout.reward.shape
        values, next_values = self._values(rollout)
        shape = (horizon, p, groups * accounts)
        reward = self._scaled(rollout.reward)
        if self.h_term is not None:
            self.h_term.remember(rollout, reward, self.settings["gamma"], self.gradient_steps)
        advantage = gae(
            reward.reshape(shape),
            values.reshape(shape),
            next_values.reshape(shape),
            rollout.terminated.reshape(shape),
            rollout.truncated.reshape(shape),
            self.settings["gamma"],
            self.settings["gae_lambda"],
        ).view(horizon, p, groups, accounts)
        target = advantage + values
        if self.config.group_baseline and accounts > 1:
            # The accounts of a group lived through the same days: what they have in common no action caused.
            advantage = advantage - advantage.mean(-1, keepdim=True)

        def by_item(x: Tensor) -> Tensor:
            """[H, P, G, ...] -> [P, H * G, ...]"""
            return x.transpose(0, 1).reshape(p, horizon * groups, *x.shape[3:])

        each = (rollout.day, rollout.account, rollout.action, rollout.log_probability, advantage, target)
        return tuple(by_item(x) for x in each), by_item(values)

    def _minibatch(
        self, data: Sequence[Tensor], chosen: Tensor, active: Tensor, rate_factor: float
    ) -> tuple[Tensor, Tensor]:
        """One gradient step of the active members; returns diagnostics [5, P] and the KL [P] before the step.

        data: the rollout by item, [P, I] and [P, I, A, ...]; chosen: the items of the minibatch [P, M].
        """
        if self._fused is not None:
            rate = self.settings["learning_rate"] * rate_factor
            settings = {**self.settings, "learning_rate": rate, "clip_range": self.clip}
            self.alive = self.alive.clone()
            assert isinstance(self.optimiser, Adam)
            figures = self._fused.update(data, chosen, settings, self.optimiser, active, self.alive)
            return figures, figures[0]
        day, account, *rest, advantage, target = (_items(x, chosen) for x in data)
        gradient, figures = self._gradient([day, account, *rest, _normalised(advantage), target])
        if self.additions is not None:
            gradient = gradient + self.additions.gradient(day, account, self.alive)
        kl, outside, policy_loss, value_loss = figures
        gradient, norm = clip_by_member(gradient, self.settings["max_grad_norm"])
        # A member whose loss is no longer a number stops here, with the parameters it had. One that sits out is
        # not judged: alone, it would not have come here.
        finite = torch.isfinite(norm) & torch.isfinite(policy_loss) & torch.isfinite(value_loss)
        self.alive = self.alive & (finite | ~active)
        moves = active & self.alive & (kl <= self.settings["target_kl"])
        self.optimiser.step(self.parameters.flat, gradient, self.settings["learning_rate"] * rate_factor, moves)
        return torch.stack([kl, outside, policy_loss, value_loss, norm]), kl

    @torch.no_grad()
    def entropy(self, data: Sequence[Tensor]) -> Tensor:
        """[P]: of the policy as it is now; where that depends on what it sees, over a minibatch of the rollout."""
        day, account = (x[:, :SEEN] for x in data[:2])
        mean, log_std = self.act(day, account)
        return self.distribution.entropy(mean, log_std)

    @property
    def gradient_steps(self) -> int:
        """Of an iteration in which no member stops early."""
        assert isinstance(self.config, PPOConfig)
        return self.config.epochs * self.config.minibatches

    @property
    def clip(self) -> Tensor:
        """[P]: how far a ratio of probabilities may move and still be learned from."""
        return self.settings["clip_range"] * self._clip_factor

    def _gradient(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Of the loss, [P, D], and what `_loss` says beside it, [4, P]."""
        target = batch[-1]  # [P, M, A]
        p, items, _ = target.shape
        parts = [torch.split(x, self._piece(target), dim=1) for x in batch]
        gradient, figures = torch.zeros_like(self.parameters.flat), torch.zeros(4, p).to(target)
        for piece in zip(*parts, strict=True):
            share = piece[0].shape[1] / items
            loss, seen = self._loss(piece)
            gradient += self.parameters.gradient((loss * share).sum())
            figures += seen * share
        return gradient, figures

    def _loss(self, piece: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss [P] over some items, and (KL, share clipped, policy loss, value loss) [4, P], all means."""
        day, account, action, old, advantage, target = piece
        features, tradable = self.rows(day)
        out = self.policy.forward(self.parameters.views, features, account, tradable)
        log_ratio = self.distribution.log_probability(action, out.mean, out.log_std) - old
        ratio = log_ratio.exp()
        clip = self.clip.view(-1, 1, 1)
        clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean(dim=(1, 2))  # [P]
        value_loss = (out.value - target).square().mean(dim=(1, 2))
        spread = self.distribution.entropy(out.mean, out.log_std)
        loss = (
            policy_loss
            + self.settings["value_coefficient"] * value_loss
            - self.settings["entropy_coefficient"] * spread
        )
        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean(dim=(1, 2))
            outside = ((ratio - 1).abs() > clip).to(self.dtype).mean(dim=(1, 2))
        return loss, torch.stack([kl, outside, policy_loss.detach(), value_loss.detach()])

    def _piece(self, like: Tensor) -> int:
        """Items of [P, M, A] to work on at once: on a CPU few enough that what a layer makes of them stays in cache."""
        if self.device.type != "cpu":
            return like.shape[1]
        p, _, accounts = like.shape
        return max(1, CACHE_FLOATS // (p * accounts * self.policy.width))

    def _shuffled(self, items: int) -> Tensor:
        """An order of the items for each member, from its own stream: [P, items]."""
        return torch.stack([torch.randperm(items, generator=s, device=self.device) for s in self._shuffles])

    @torch.no_grad()
    def _values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of the states [H, P, G, A] and of the states they led to, before any reset."""
        horizon, p, groups, accounts = rollout.reward.shape

        def value(day: Tensor, account: Tensor) -> Tensor:
            if self._fused is not None:
                return self._fused.value(day, account)
            features, tradable = self.rows(day)
            return self.policy.value(self.parameters.views, features, account, tradable)

        after = (rollout.last, *rollout.ends)
        days = torch.cat([rollout.day, *(x.day.unsqueeze(0) for x in after)])
        wide = (1, p, groups, accounts, -1)
        accounts_all = torch.cat(
            [rollout.account, *(x.account.view(wide) for x in after)]
        )  # [H + 1 + rounds of ends, P, G, A, 1 + N]
        flat = value(
            days.transpose(0, 1).reshape(p, -1), accounts_all.transpose(0, 1).reshape(p, -1, *accounts_all.shape[3:])
        )
        all_values = flat.view(p, horizon + len(after), groups, accounts).transpose(0, 1)
        following, nth = all_values[1 : horizon + 1], rollout.over.cumsum(0)
        for r, ends in enumerate(all_values[horizon + 1 :]):
            ended = (rollout.over & (nth == r + 1)).unsqueeze(-1)
            following = torch.where(ended, ends, following)
        return all_values[:horizon], following

    @torch.no_grad()
    def _scaled(self, reward: Tensor) -> Tensor:
        """Rewards over their standard deviation in the first rollout, so that values are of order one."""
        if not self.config.scale_rewards:
            return reward
        first = scale_of_rewards(spread_of_rewards(reward))
        self.reward_scale = torch.where(self.reward_scale == 0, first, self.reward_scale)
        return reward * self.reward_scale.view(1, -1, 1, 1)


def _optimiser(config: OnPolicyConfig, flat: Tensor) -> Optimiser:
    kind = RMSprop if config.optimiser == "rmsprop" else Adam
    return kind(flat, config.optimiser_epsilon)


def explained(values: Tensor, target: Tensor) -> Tensor:
    """Share of the targets' variance that the critic explains: [P, K, A] both -> [P]."""
    return 1 - (target - values).var(dim=(1, 2)) / target.var(dim=(1, 2)).clamp(min=1e-12)


def _items(x: Tensor, chosen: Tensor) -> Tensor:
    """x [P, I, ...] at chosen [P, M]: [P, M, ...]."""
    if x.shape[0] == 1:
        return x[0].index_select(0, chosen[0]).unsqueeze(0)
    return x[torch.arange(x.shape[0], device=x.device).unsqueeze(1), chosen]


def _normalised(advantage: Tensor) -> Tensor:
    """Zero mean, unit spread for each member: [P, M, A]."""
    mean = advantage.mean(dim=(1, 2), keepdim=True)
    spread = advantage.std(dim=(1, 2), keepdim=True)
    return (advantage - mean) / (spread + 1e-8)

"""Optional terms of a policy-gradient loss: the H-term and the diversity bonus.

For each member p and its next living neighbour q, over states that p was in,

    B = mean of 1 - exp(-KL(pi_p || pi_q) / D),

with D the number of scores that count (1 if discrete); no gradient flows into q. B lies between 0 (equal policies) and
1, so a member gains little by moving ever further away. diversity x B is subtracted from the loss of p. Members then no
longer train independently.
Compare Parker-Holder et al. 2020 (arXiv:2002.00632), who reward the volume that the behaviours of a population span.

After "Stationary deep reinforcement learning with quantum K-spin Hamiltonian equation" (OpenReview LVum7knUA7g):
it unrolls the Bellman recursion over K steps and reads it as the energy of a system of K spins,

    H(theta) = -E[ sum_k discount^k r(s_k, a_k) prod_{i <= k} pi(a_i | s_i) ].

A product of densities of K x D numbers under- or overflows, and a density has a unit. What is computed here instead is,
for each member, over L trajectories drawn from its buffer,

    H(theta) = -1/L sum_l sum_{k < K} discount^k r_lk exp( 1 / (D (k + 1)) sum_{i <= k} log(pi(a_li | s_li) / old_li) )

where D is the number of scores that count (1 if discrete), summed over steps where assets come and go, and old the
density with which it was sampled: the product is
the geometric mean, per sampled number, of the density relative to the density under the policy that sampled it:
every factor is 1 when a trajectory is new. The rewards r are scaled as in training: under scale_rewards in units of
their standard deviation in the first rollout, under group_baseline less the mean of the accounts of the same
group; after the end of an episode they are 0. Where all of them are negative, as on Pendulum, lowering H makes
even the best trajectories less likely: the term is for rewards around a baseline.

The buffer keeps, of every rollout, the L trajectories with the largest sum of discount^k r_k among all stretches of K
steps that begin at a multiple of K, and drops the oldest. The loss gains h_term x H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.experience.replay import Replay
from finrl_pod.rl.experience.rollout import Rollout
from finrl_pod.rl.networks.distributions import distribution_of
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import PolicySpec, log_std_of
from finrl_pod.rl.optimisation.optimiser import Parameters
from finrl_pod.settings.algorithm_configs import OnPolicyConfig
from finrl_pod.types import Tensor

# Mean scores [P, K, A, D] by weights of P members.
Mean = Callable[[Params], Tensor]
# KL [P, K, A] of two policies from their means and log standard deviations, over the valid scores.
Divergence = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
# Scores in the density of actions on bars [P, K]: [P, K, 1, D] bool, None if all are.
Valid = Callable[[Tensor], Tensor | None]
MAX_SCORE = 1e4  # scores are clamped to it


def neighbours(alive: Tensor) -> Tensor:
    """Index [P] of the next living member for each member, cyclically; its own index if there is none.

    alive: [P] bool. Computed on its device, without waiting for it.
    """
    count = len(alive)
    member = torch.arange(count, device=alive.device)
    distance = (member - member.unsqueeze(1) - 1) % count  # from 0 for the next member to P - 1 for oneself
    is_candidate = alive | (distance == count - 1)
    return torch.where(is_candidate, distance, count).argmin(1)


def bonus(views: Params, mean: Mean, others: Tensor, divergence: Divergence, valid: Tensor | None = None) -> Tensor:
    """B [P], differentiable by the weights of each member. mean: maps weights to scores in given states.

    others: [P] int64, the member that each is compared with.
    valid: scores that count in these states [P, K, 1, D], None if all do.
    """
    other = {name: view.detach()[others] for name, view in views.items()}
    with torch.no_grad():
        # A diverged neighbour must not affect this member.
        theirs = mean(other).nan_to_num().clamp(-MAX_SCORE, MAX_SCORE)
    own = mean(views)
    each = divergence(own, log_std_of(views, own), theirs, log_std_of(other, theirs), valid)
    return 1 - (-each).exp().mean((1, 2))


def gaussian_kl(
    mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor, valid: Tensor | None = None
) -> Tensor:
    """KL of diagonal Gaussians per valid score: means [P, K, A, D], log_std [P, D or 1] -> [P, K, A]."""
    wide = (log_std.shape[0], 1, 1, -1)
    own = log_std.view(wide)
    theirs = other_log_std.view(wide)
    ratio = (2 * (own - theirs)).exp() + ((mean - other_mean) * (-theirs).exp()).square()
    each = theirs - own + 0.5 * (ratio - 1)
    if valid is None:
        return each.mean(-1)
    return torch.where(valid, each, 0.0).sum(-1) / valid.sum(-1).clamp(min=1)


def categorical_kl(
    logits: Tensor,
    log_std: Tensor,  # noqa: ARG001  choices have no spread
    other_logits: Tensor,
    other_log_std: Tensor,  # noqa: ARG001
    valid: Tensor | None = None,  # noqa: ARG001
) -> Tensor:
    """KL of choices by the softmax of logits [P, K, A, C]: [P, K, A]."""
    own = torch.log_softmax(logits, -1)
    theirs = torch.log_softmax(other_logits, -1)
    return (own.exp() * (own - theirs)).sum(-1)


# Log-probability [P, K, A] of actions [P, K, A, D] in bars [P, K] and accounts [P, K, A, 1 + N].
LogProbability = Callable[[Tensor, Tensor, Tensor], Tensor]


class HTerm:
    """Buffers of the best trajectories of P members, and the H-term of samples from them."""

    def __init__(
        self,
        config: OnPolicyConfig,
        spec: PolicySpec,
        source: RandomSource,
        dtype: torch.dtype,
        device: torch.device,
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

    def energy(self, log_probability: LogProbability, discount: Tensor, valid: Valid = lambda _: None) -> Tensor:
        """H [P] of the next L trajectories sampled for each member, differentiable by the policy."""
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


DIVERSITY_SUBSAMPLE = 8  # the bonus uses one in so many states of a minibatch
# Mean scores [P, K, A, D] and their log standard deviation, by weights, in bars [P, K] and accounts [P, K, A, 1 + N].
Decide = Callable[[Params, Tensor, Tensor], tuple[Tensor, Tensor]]


class Regularisers:
    """Gradient of the terms that are on, for P members; h_term: None if off; diverse: whether the bonus is on."""

    def __init__(
        self,
        config: OnPolicyConfig,
        settings: dict[str, Tensor],
        parameters: Parameters,
        decide: Decide,
        valid: Valid,
        spec: PolicySpec,
        source: Callable[[str], RandomSource],
    ) -> None:
        """source: makes random numbers for a purpose."""
        self.settings = settings
        self.parameters = parameters
        self.decide = decide
        self.valid = valid
        self.distribution = distribution_of(spec.action)
        self.divergence = categorical_kl if spec.action == "discrete" else gaussian_kl
        self.h_term: HTerm | None = None
        if settings["h_term"].any():
            self.h_term = HTerm(config, spec, source("h-term"), parameters.flat.dtype, parameters.flat.device)
        self.diverse = len(parameters.flat) > 1 and bool(settings["diversity"].any())

    def gradient(self, bar: Tensor, account: Tensor, alive: Tensor) -> Tensor:
        """Gradient [P, W] on states bar [P, K], account [P, K, A, 1 + N]; alive: [P] bool."""
        views = self.parameters.views
        loss = torch.zeros_like(self.settings["diversity"])

        def log_prob_of(bar: Tensor, account: Tensor, action: Tensor) -> Tensor:
            return self.distribution.log_probability(action, *self.decide(views, bar, account), self.valid(bar))

        if self.h_term is not None:
            loss = loss + self.settings["h_term"] * self.h_term.energy(log_prob_of, self.settings["gamma"], self.valid)
        if self.diverse:
            count = max(1, bar.shape[1] // DIVERSITY_SUBSAMPLE)
            states = (bar[:, :count], account[:, :count])
            valid = alive & torch.isfinite(self.parameters.flat).all(1)
            others = neighbours(valid)
            loss = loss - self.settings["diversity"] * bonus(
                views, lambda params: self.decide(params, *states)[0], others, self.divergence, self.valid(states[0])
            )
        return self.parameters.gradient(loss.sum(), partial=True)

"""Members that learn to differ: a bonus for acting unlike the next member in the same states.

For each member p and its next living neighbour q, over states that p was in,

    B = mean of 1 - exp(-KL(pi_p || pi_q) / D),

with D the size of an action (1 for a choice); q is held still. B lies between 0 (the same policy) and 1, so that a
member gains nothing by running ever further away. The loss of p loses diversity x B. Members then no longer learn as
they would alone.
Compare Parker-Holder et al. 2020 (arXiv:2002.00632), who reward the volume that a population's behaviours span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from finrl_pod.rl.networks import spread_of
from finrl_pod.types import Tensor

Views = Mapping[str, Tensor]
# Mean scores [P, K, A, D] by weights of P members.
Mean = Callable[[Views], Tensor]
# KL [P, K, A] of two policies from their means and log standard deviations.
Divergence = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
FAR = 1e4  # scores beyond it are as far away as can be


def neighbours(alive: Sequence[bool]) -> list[int]:
    """For each member the next one that is alive and has numbers for weights, in a circle; itself without one."""
    count = len(alive)
    return [next((q for i in range(1, count) if alive[q := (p + i) % count]), p) for p in range(count)]


def bonus(views: Views, mean: Mean, others: Sequence[int], divergence: Divergence) -> Tensor:
    """B [P], with gradients by each member's own weights. mean: in the states of every member."""
    order = torch.tensor(others, device=next(iter(views.values())).device)
    other = {name: view.detach()[order] for name, view in views.items()}
    with torch.no_grad():
        theirs = mean(other).nan_to_num().clamp(-FAR, FAR)  # who has lost all measure must not take the other along
    own = mean(views)
    each = divergence(own, spread_of(views, own), theirs, spread_of(other, theirs))
    return 1 - (-each).exp().mean((1, 2))


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL of diagonal Gaussians, for each of their D numbers: means [P, K, A, D], log_std [P, D or 1] -> [P, K, A]."""
    wide = (log_std.shape[0], 1, 1, -1)
    own, theirs = log_std.view(wide), other_log_std.view(wide)
    ratio = (2 * (own - theirs)).exp() + ((mean - other_mean) * (-theirs).exp()).square()
    return (theirs - own + 0.5 * (ratio - 1)).mean(-1)


def categorical_kl(
    logits: Tensor,
    log_std: Tensor,  # noqa: ARG001  choices have no spread
    other_logits: Tensor,
    other_log_std: Tensor,  # noqa: ARG001
) -> Tensor:
    """KL of choices by the softmax of logits [P, K, A, C]: [P, K, A]."""
    own, theirs = torch.log_softmax(logits, -1), torch.log_softmax(other_logits, -1)
    return (own.exp() * (own - theirs)).sum(-1)

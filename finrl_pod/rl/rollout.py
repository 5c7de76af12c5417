"""What a worker hands to an on-policy learner."""

from __future__ import annotations

from typing import NamedTuple

from finrl_pod.types import Observation, Tensor


class Rollout(NamedTuple):
    """H steps of P members times G groups of A accounts. The market is not copied: a day points into its table.

    day: [H, P, G] int64; account: [H, P, G, A, 1 + N]; action: [H, P, G, A, D]; log_probability, reward: [H, P, G, A];
    terminated, truncated: [H, P, G, A] bool; last: the observation after the last step.
    ends: where a window was over, the observation before the reset: (day [P, G], account [P, E, 1 + N]); a group ends
    at most once a rollout. over: [H, P, G] bool, the step at which it did.
    """

    day: Tensor
    account: Tensor
    action: Tensor
    log_probability: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    last: Observation
    ends: Observation
    over: Tensor

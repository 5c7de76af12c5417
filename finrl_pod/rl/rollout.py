"""What a worker hands to an on-policy learner."""

from __future__ import annotations

from typing import NamedTuple

from finrl_pod.types import Observation, Tensor


class Rollout(NamedTuple):
    """H steps of P members times G groups of A accounts. The market is not copied: a day points into its table.

    day: [H, P, G] int64; account: [H, P, G, A, 1 + N]; action: [H, P, G, A, D]; log_probability, reward: [H, P, G, A];
    terminated, truncated: [H, P, G, A] bool; last: the observation after the last step.
    over: [H, P, G] bool, the steps at which a group's time was over. ends: the observations before those resets, the
    r-th of each group in ends[r]: (day [P, G], account [P, E, 1 + N]). A market's group ends at most once a rollout.
    Other environments show flat rows: their day is 0 and their account the row, one environment a group.
    """

    day: Tensor
    account: Tensor
    action: Tensor
    log_probability: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    last: Observation
    ends: tuple[Observation, ...]
    over: Tensor

"""Analytic policy gradient: climb the rewards of a short horizon by their exact derivative through the market.

The gradient of a score-function method such as PPO is an estimate from what chance tried; here the market says itself
how every reward depends on every earlier decision (pathwise derivative, back-propagation through time; truncated to a
horizon as in Freeman et al. 2021, arXiv:2106.13281, `apg`).
"""

from __future__ import annotations

from finrl_pod.rl.algorithm import Metrics
from finrl_pod.rl.through_market import Path, ThroughMarket


class Analytic(ThroughMarket):
    """Every iteration: one step of the actor up

        J = mean over accounts of sum_h discount^h r_h,   h = 0 .. horizon - 1,

    with a_h = mean scores(s_h) + exploration x noise. What comes after the horizon is not seen.
    """

    def _learn(self, path: Path, rate_factor: float) -> Metrics:
        weights = self._weights_of_steps(path.ended)[:-1]
        earned = (path.reward * weights).sum(0) * self.reward_scale.view(-1, 1, 1)
        loss = -earned.mean((1, 2))
        norm = self.trained.descend("actor", loss, rate_factor)
        return {"actor_loss": loss.detach(), "grad_norm": norm}

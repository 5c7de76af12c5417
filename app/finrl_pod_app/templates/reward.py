"""The reward my_reward: log growth less a charge for losses beyond 2%.

Use it in a config, [environment] reward = "FILE.py:my_reward"; check it with finrl-pod check FILE.py:my_reward.
"""

from torch import Tensor

from finrl_pod.market.rewards import Interval

LIMIT = 0.02


def my_reward(interval: Interval) -> Tensor:
    """Reward of a step for each account, a tensor of the shape of interval.before.

    interval.before, .after: equity in currency at two fills. interval.turnover: value traded over equity.
    interval.base_growth: log growth of the base portfolio of the mandate. Use torch operations: some algorithms
    differentiate the reward.
    """
    growth = (interval.after / interval.before).clamp(min=1e-6).log()
    return growth - (-growth - LIMIT).clamp(min=0)

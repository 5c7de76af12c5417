"""D3QN: a dueling head (Wang et al. 2016) with the double target (van Hasselt et al. 2016)."""

from __future__ import annotations

from finrl_pod.rl.double_dqn import DoubleDQN


class D3QN(DoubleDQN):
    """Double DQN with a dueling head."""

    DUELING = True

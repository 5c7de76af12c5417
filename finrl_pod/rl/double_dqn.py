"""Double DQN, van Hasselt et al. 2016: the network chooses the next action, its target values it."""

from __future__ import annotations

from finrl_pod.rl.dqn import DQN
from finrl_pod.rl.inputs import Seen
from finrl_pod.types import Tensor


class DoubleDQN(DQN):
    """The maximum over noisy values is too high; a choice by one network and a value by another is less so."""

    def next_values(self, seen: Seen) -> Tensor:
        best = self._decide(seen).unsqueeze(-1)
        return self.network.forward(self.trained.targets["values"].views, seen).gather(-1, best).squeeze(-1)

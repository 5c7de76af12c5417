"""Drift: keep a drifting point near zero.

An environment for `finrl-pod train --env FILE.py:CLASS`. Replace the dynamics by your own; the contract is checked by
`finrl-pod check FILE.py:CLASS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finrl_pod_envs.custom.base_env import BaseVecEnv, State, Transition

LIMIT = 3.0  # an episode ends when the point is farther away


class Drift(BaseVecEnv):
    """P x E points on a line, each with a velocity that is drawn at the start of its episode.

    observation: position and velocity. action: a push in [-1, 1]. reward: minus the squared position.
    """

    observation_size = 2
    action_size = 1
    action_kind = "direct"  # actions in [-1, 1]; "discrete" for choices 0, 1, ..., `actions` - 1
    actions = 0  # number of choices, 0 unless discrete
    max_steps = 64  # limit of an episode

    def start(self) -> State:
        """State of new episodes, tensors [P, E]; random numbers from `normal` and `uniform`."""
        return {"position": torch.zeros(self.members, self.envs, device=self.device), "velocity": self.normal()}

    def transition(self, state: State, action: Tensor) -> Transition:
        """Next state, reward [P, E], and whether the task has ended [P, E], after actions [P, E, 1]."""
        push = action[..., 0].clamp(-1.0, 1.0)
        position = state["position"] + 0.1 * (state["velocity"] + push + 0.1 * self.normal())
        return Transition({**state, "position": position}, -position.square(), position.abs() > LIMIT)

    def observe(self, state: State) -> Tensor:
        """Observations [P, E, 2]."""
        return torch.stack([state["position"], state["velocity"]], -1)

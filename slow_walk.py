"""The environment SlowWalk: keep a drifting point near zero.

Train on it with finrl-pod train --env slow_walk.py:SlowWalk --algorithm ppo --steps 100000; check it with finrl-pod
check slow_walk.py:SlowWalk.
"""

import torch
from finrl_pod_envs.custom.base_env import BaseVecEnv, State, Transition
from torch import Tensor

LIMIT = 3.0  # an episode ends when the point is farther away


class SlowWalk(BaseVecEnv):
    """Points on a line, each with a velocity that is drawn at the start of its episode.

    observation: position and velocity. action: a push in [-1, 1]. reward: minus the squared position.
    """

    observation_size = 2
    action_size = 1
    max_steps = 64

    def start(self) -> State:
        """New episodes: tensors [P, E]."""
        velocity = self.normal()
        return {"position": torch.zeros_like(velocity), "velocity": velocity}

    def transition(self, state: State, action: Tensor) -> Transition:
        """Move all points by their velocity, the push [P, E, 1] and noise."""
        push = action[..., 0].clamp(-1.0, 1.0) + 0.1 * self.normal()
        position = state["position"] + 0.1 * (state["velocity"] + push)
        return Transition({**state, "position": position}, -position.square(), position.abs() > LIMIT)

    def observe(self, state: State) -> Tensor:
        """Observations [P, E, 2]."""
        return torch.stack([state["position"], state["velocity"]], -1)

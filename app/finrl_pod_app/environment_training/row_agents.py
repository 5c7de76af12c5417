"""The agents of a run of `train --env` as one module from observations to what the environment takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.lanes import Shapes

from finrl_pod.errors import ConfigError
from finrl_pod.types import Tensor
from finrl_pod_app.environment_training.saved_agents import SavedAgents, network_dtype

UNITS = "in the units of the environment, within its bounds"


class RowAgents(torch.nn.Module):
    """Actions [M, E, ...] of M members for rows [E, S]; all members act on all rows.

    For the M agents of one environment rows are [M, E, S], the own observations of each agent.
    """

    def __init__(self, agents: SavedAgents) -> None:
        """Raises ConfigError for agents of one environment whose actions have different shapes or need its state."""
        super().__init__()
        self._agents = agents
        self._own = agents.spec.features - agents.spec.critic_only
        for name, value in agents.weights.items():
            self.register_buffer(f"network_{name}", value.detach().clone())
        self._units = _ActionUnits(agents.shapes) if agents.shapes else None
        rows = torch.randn(agents.count, 8, agents.spec.features, generator=torch.Generator().manual_seed(0))
        action = agents.act(rows)
        rows[..., self._own :] = 0.0
        if not torch.equal(agents.act(rows), action):
            raise ConfigError("the policy of these agents reads the state of all agents, not only own observations")

    @property
    def input_shape(self) -> list[str | int]:
        """Dimensions of the rows."""
        return [*(["agents"] if self._agents.names else []), "E", self._own]

    @property
    def output(self) -> dict[str, Any]:
        """Kind, shape and meaning of the actions, with their bounds or numbers of choices."""
        agents = self._agents
        first = agents.shapes[0] if agents.shapes else None
        leading = ["agents" if agents.names else "members", "E"]
        kind = agents.spec.action
        if kind == "discrete":
            parts = [len(first.counts)] if first is not None else [1]
            choices = list(first.counts) if first is not None else [agents.spec.action_size]
            bounds: dict[str, Any] = {"choices": choices, "first": list(first.first) if first is not None else [0]}
            return {"shape": [*leading, *parts], "kind": kind, "meaning": f"choices, {UNITS}", **bounds}
        shape = list(first.action) if first is not None else [agents.spec.action_size]
        low = [np.reshape(x.low, shape).tolist() for x in agents.shapes] or [[-1.0] * agents.spec.action_size]
        high = [np.reshape(x.high, shape).tolist() for x in agents.shapes] or [[1.0] * agents.spec.action_size]
        bounds = {"low": low, "high": high} if agents.names and agents.shapes else {"low": low[0], "high": high[0]}
        return {"shape": [*leading, *shape], "kind": kind, "meaning": f"numbers {UNITS}", **bounds}

    def forward(self, observation: Tensor) -> Tensor:
        weights = {name: getattr(self, f"network_{name}") for name in self._agents.weights}
        agents = self._agents
        rows = observation.to(network_dtype(weights))
        if not agents.names:
            rows = rows.expand(agents.count, *rows.shape)
        count, envs = rows.shape[0], rows.shape[1]
        unseen = rows.new_zeros(count, envs, agents.spec.critic_only)  # only critics read the rest of a row
        rows = torch.cat([rows, unseen], -1).reshape(agents.count, 1, -1, agents.spec.features)
        action = agents.actor.action(weights, rows.new_zeros(agents.count, 1, 0, 0), rows, None)
        action = action.reshape(count, envs, -1)
        if self._units is not None:
            in_units: Tensor = self._units(action)
            return in_units
        return action.clamp(-1.0, 1.0) if action.is_floating_point() else action


class _ActionUnits(torch.nn.Module):
    """Actions of M agents [M, E, C] in the units of their environments, as `to_action` converts each."""

    low: Tensor
    high: Tensor
    strides: Tensor
    counts: Tensor
    first: Tensor

    def __init__(self, shapes: tuple[Shapes, ...]) -> None:
        super().__init__()
        one = shapes[0]
        if any((x.action, x.counts) != (one.action, one.counts) for x in shapes):
            raise ConfigError("agents whose actions have different shapes cannot be exported together")
        self._shape = one.action
        self._has_choices = bool(one.choices)
        if self._has_choices:
            counts = torch.tensor(one.counts)
            self.register_buffer("counts", counts)
            self.register_buffer("strides", counts.flip(0).cumprod(0).flip(0) // counts)
            self.register_buffer("first", torch.tensor([x.first for x in shapes]).unsqueeze(1))
        else:
            self.register_buffer("low", torch.tensor([x.low for x in shapes], dtype=torch.float32).unsqueeze(1))
            self.register_buffer("high", torch.tensor([x.high for x in shapes], dtype=torch.float32).unsqueeze(1))

    def forward(self, action: Tensor) -> Tensor:
        if self._has_choices:
            return action // self.strides % self.counts + self.first
        fraction = (action.float().clamp(-1.0, 1.0) + 1) / 2
        scaled = torch.minimum(torch.maximum(self.low + fraction * (self.high - self.low), self.low), self.high)
        return scaled.reshape(*scaled.shape[:2], *self._shape)

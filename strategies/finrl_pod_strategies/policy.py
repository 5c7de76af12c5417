"""Trained agents as a strategy: one, or an ensemble whose target weights are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from finrl_pod.config import EnvironmentConfig
from finrl_pod.data.normalise import normalise
from finrl_pod.errors import RunError
from finrl_pod.rl.acting import target_weights
from finrl_pod.rl.networks import Policy, PolicySpec, make_policy
from finrl_pod.types import AgentSnapshot, Floats, Positions, Window


class PolicyStrategy:
    """Target weights of trained agents, without exploration. All members share one policy spec and one normaliser.

    The features of the decision bar come with the window; the normaliser is the one fitted in training.
    """

    lookback = 1

    def __init__(
        self, snapshots: Sequence[AgentSnapshot], shares: Sequence[float] | None = None, name: str = "champion"
    ) -> None:
        """shares: of the ensemble, summing to one; equal when None. Raises RunError for agents that do not match."""
        if not snapshots:
            raise RunError("an ensemble needs at least one agent")
        first = snapshots[0]
        for other in snapshots[1:]:
            if other.spec != first.spec or other.normaliser != first.normaliser:
                raise RunError(
                    f"agents {first.id} and {other.id} cannot form one ensemble: their policies or features differ"
                )
        self.name = name
        self.rules, self.policy = _made_by(first)
        self.normaliser = first.normaliser
        self.feature_names = first.normaliser.feature_names
        if self.rules.turbulence_limit > 0 and "turbulence" not in self.feature_names:
            self.feature_names = (*self.feature_names, "turbulence")
        self.params = {name: torch.stack([s.weights[name] for s in snapshots]) for name in first.weights}
        self.shares = np.full(len(snapshots), 1 / len(snapshots)) if shares is None else np.asarray(shares, float)

    def check_universe(self, symbols: Sequence[str]) -> None:
        """Raises RunError when the policy cannot trade that many symbols: the equivariant one can trade any number."""
        wanted = self.policy.spec.assets
        if self.policy.spec.kind != "equivariant" and len(symbols) != wanted:
            raise RunError(
                f"strategy {self.name} was trained on {wanted} symbols with a policy that needs just as many, "
                f"got {len(symbols)}; train an equivariant policy to trade another number"
            )

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """[N] weights at the window's last bar: the mean of what the members would hold."""
        if window.features is None:
            raise RunError(f"strategy {self.name} needs the features of the decision bar")
        if self._stormy(window.features):
            return np.zeros(len(window.symbols))
        known = window.features[:, : len(self.normaliser.feature_names)]
        rows = torch.from_numpy(normalise(known, self.normaliser))
        members = len(self.shares)
        weights = target_weights(
            self.policy,
            self.params,
            rows,
            torch.from_numpy(window.tradable[-1]),
            torch.from_numpy(positions.weights).expand(members, -1),
            torch.full((members,), positions.equity, dtype=torch.float64),
            torch.from_numpy(np.where(window.tradable[-1], window.close[-1], 1.0)),
            self.rules,
        )
        mean: Floats = self.shares @ weights.numpy()
        return mean

    def _stormy(self, features: Floats) -> bool:
        """Whether turbulence (the same for all assets) is above the limit that the agents were trained with."""
        if self.rules.turbulence_limit <= 0:
            return False
        column = features[:, self.feature_names.index("turbulence")]
        return bool(np.nanmax(column, initial=-np.inf) > self.rules.turbulence_limit)


def _made_by(snapshot: AgentSnapshot) -> tuple[EnvironmentConfig, Policy]:
    """The rules and the policy that a snapshot's spec names. Raises RunError for a spec of another version."""
    spec: dict[str, Any] = dict(snapshot.spec)
    try:
        shape = (spec["assets"], spec["features"], spec["action_size"], tuple(spec["hidden"]))
        return EnvironmentConfig(**spec["environment"]), make_policy(PolicySpec(spec["kind"], *shape, spec["action"]))
    except (KeyError, TypeError):
        raise RunError(
            f"agent {snapshot.id} was saved by finrl_pod {snapshot.version} in a form that this version does not know; "
            "train it anew"
        ) from None

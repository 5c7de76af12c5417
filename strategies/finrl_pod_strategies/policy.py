"""Trained agents as a strategy: one, or an ensemble whose target weights are averaged or voted on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from finrl_pod.data.normalise import normalise
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.actions import choices_as_weights
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.algorithms.base import Actor
from finrl_pod.rl.algorithms.registry import make_actor
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.acting import choices, target_weights
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import AgentSnapshot, Floats, Positions, Tensor, Window

HALF = 0.5
ROUNDING = 1e-12  # shares that sum to a half but for rounding are a half


def majority(choices: Sequence[int], shares: Floats) -> int:
    """The choice with the largest sum of shares; among equals that of the member who stands first."""
    votes: dict[int, float] = {}
    for choice, share in zip(choices, shares, strict=True):
        votes[choice] = votes.get(choice, 0.0) + float(share)
    most = max(votes.values())
    return next(choice for choice in choices if votes[choice] >= most - ROUNDING)


def median_weights(weights: Floats, shares: Floats) -> Floats:
    """The vote on numbers: of weights [M, N] the median [N] for each asset, each member counting with its share [M].

    No majority wants more of an asset than that, and none wants less. Where the medians together hold more than any
    single member does they are scaled down to what the fullest member holds.
    """
    order = np.argsort(weights, axis=0, kind="stable")
    values = np.take_along_axis(weights, order, 0)
    reached = np.cumsum(shares[order], 0) / shares.sum()  # [M, N]
    lower = (reached >= HALF - ROUNDING).argmax(0)
    upper = (reached > HALF + ROUNDING).argmax(0)
    columns = np.arange(weights.shape[1])
    median: Floats = (values[lower, columns] + values[upper, columns]) / 2
    gross, most = float(np.abs(median).sum()), float(np.abs(weights).sum(1).max())
    return median * (most / gross) if gross > most else median


class MemberGroup(NamedTuple):
    """Members that act alike. actor, params [M, ...]: how; members: [M] their places in the ensemble."""

    actor: Actor
    params: dict[str, Tensor]
    members: list[int]


class PolicyStrategy:
    """Target weights of trained agents, without exploration. All members share one market: its rules and normaliser.

    The features of the decision bar come with the window; the normaliser is the one fitted in training.
    """

    lookback = 1

    def __init__(
        self,
        snapshots: Sequence[AgentSnapshot],
        shares: Sequence[float] | None = None,
        name: str = "champion",
        rule: Literal["mean", "vote"] = "mean",
    ) -> None:
        """shares: of the ensemble, summing to one; equal when None. rule: what is made of what the members want.

        Raises RunError for agents that do not match.
        """
        if not snapshots:
            raise RunError("an ensemble needs at least one agent")
        first = snapshots[0]
        self.rules, self.groups = _made_by(first)[0], _families(snapshots)
        for other in snapshots[1:]:
            if other.normaliser != first.normaliser or other.spec["environment"] != first.spec["environment"]:
                raise RunError(
                    f"agents {first.id} and {other.id} cannot form one ensemble: their environments or features differ"
                )
        self.name, self.rule = name, rule
        self.normaliser = first.normaliser
        self.feature_names = first.normaliser.feature_names
        if self.rules.turbulence_limit > 0 and "turbulence" not in self.feature_names:
            self.feature_names = (*self.feature_names, "turbulence")
        self.shares = np.full(len(snapshots), 1 / len(snapshots)) if shares is None else np.asarray(shares, float)

    def check_universe(self, symbols: Sequence[str]) -> None:
        """Raises RunError when the policy cannot trade that many symbols: the equivariant one can trade any number."""
        for actor, _, _ in self.groups:
            if actor.spec.kind != "equivariant" and len(symbols) != actor.spec.assets:
                raise RunError(
                    f"strategy {self.name} was trained on {actor.spec.assets} symbols with a policy that needs just "
                    f"as many, got {len(symbols)}; train an equivariant policy to trade another number"
                )

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """[N] weights at the window's last bar: the mean of what the members would hold, or what they vote for."""
        if window.features is None:
            raise RunError(f"strategy {self.name} needs the features of the decision bar")
        if self._stormy(window.features):
            return np.zeros(len(window.symbols))
        known = window.features[:, : len(self.normaliser.feature_names)]
        rows = torch.from_numpy(normalise(known, self.normaliser))
        tradable = torch.from_numpy(window.tradable[-1])
        if self.rule == "vote" and self.rules.kind == "discrete":
            return self._chosen_by_most(rows, tradable, positions)
        prices = torch.from_numpy(np.where(window.tradable[-1], window.close[-1], 1.0))
        each: Floats = np.empty((len(self.shares), len(window.symbols)))
        for actor, params, members in self.groups:
            held = torch.from_numpy(positions.weights).expand(len(members), -1)
            worth = torch.full((len(members),), positions.equity, dtype=torch.float64)
            weights = target_weights(actor, params, rows, tradable, held, worth, prices, self.rules)
            each[members] = weights.numpy()
        if self.rule == "vote":
            return median_weights(each, self.shares)
        mean: Floats = self.shares @ each
        return mean

    def _chosen_by_most(self, rows: Tensor, tradable: Tensor, positions: Positions) -> Floats:
        """[N] weights that the choice of most leads to."""
        each = [0] * len(self.shares)
        for actor, params, members in self.groups:
            held = torch.from_numpy(positions.weights).expand(len(members), -1)
            chosen = choices(actor, params, rows, tradable, held, self.rules)
            for member, choice in zip(members, chosen.tolist(), strict=True):
                each[member] = choice
        choice = torch.tensor([majority(each, self.shares)])
        held = torch.from_numpy(positions.weights).unsqueeze(0)
        weights = choices_as_weights(
            choice, held, tradable, trade_fraction=self.rules.trade_fraction, rules=rules_of(self.rules)
        )
        return np.asarray(weights[0].numpy(), dtype=np.float64)

    def _stormy(self, features: Floats) -> bool:
        """Whether turbulence (the same for all assets) is above the limit that the agents were trained with."""
        if self.rules.turbulence_limit <= 0:
            return False
        column = features[:, self.feature_names.index("turbulence")]
        return bool(np.nanmax(column, initial=-np.inf) > self.rules.turbulence_limit)


def _families(snapshots: Sequence[AgentSnapshot]) -> list[MemberGroup]:
    """Members of one spec act as one batch."""
    groups: list[list[int]] = []
    for i, snapshot in enumerate(snapshots):
        kin = next((family for family in groups if snapshots[family[0]].spec == snapshot.spec), None)
        if kin is None:
            groups.append([i])
        else:
            kin.append(i)
    return [
        MemberGroup(
            _made_by(snapshots[family[0]])[1],
            {name: torch.stack([snapshots[i].weights[name] for i in family]) for name in snapshots[family[0]].weights},
            family,
        )
        for family in groups
    ]


def _made_by(snapshot: AgentSnapshot) -> tuple[EnvironmentConfig, Actor]:
    """The rules and the actor that a snapshot's spec names. Raises RunError for a spec of another version."""
    spec: dict[str, Any] = dict(snapshot.spec)
    try:
        shape = (spec["assets"], spec["features"], spec["action_size"], tuple(spec["hidden"]))
        made = PolicySpec(spec["kind"], *shape, spec["action"], spec.get("activation", "tanh"))
        return EnvironmentConfig(**spec["environment"]), make_actor(spec["algorithm"], made)
    except (KeyError, TypeError, ConfigError):
        raise RunError(
            f"agent {snapshot.id} was saved by finrl_pod {snapshot.version} in a form that this version does not know; "
            "train it anew"
        ) from None

"""Trained agents as a strategy: a single agent, an ensemble that averages or votes, or a model of another library.

A model, such as one of Stable-Baselines3, observes what the Gymnasium views of the market show (`finrl_pod_envs.gym`),
and its actions mean the same.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, cast

import numpy as np
import torch

from finrl_pod import __version__
from finrl_pod.data.price_features import turbulent_bars
from finrl_pod.data.tensor import normalise
from finrl_pod.errors import ConfigError, InputError, RunError, count_text
from finrl_pod.market.account_extras import AccountTracker, account_extras
from finrl_pod.market.actions import choices_as_weights
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.acting import Actor, DecisionInputs, asset_scores, choices, target_weights
from finrl_pod.rl.algorithms.factory import make_actor
from finrl_pod.rl.networks.inputs import OBSERVATION_BOUND, action_scale
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.run import EnvironmentConfig, GroupConfig, MandateConfig, TableConfig
from finrl_pod.types import AgentSnapshot, Floats, Normaliser, Positions, Tensor, Window
from finrl_pod_strategies.mandate_account import AccountState, MandateAccount
from finrl_pod_strategies.model_wrappers import ModelView, model_view
from finrl_pod_strategies.score_parts import ScoredDecision

HALF = 0.5
WEIGHT_TOLERANCE = 1e-12  # rounding error of sums of ensemble weights
LEARNED = ("kind", "short")  # rules that give actions their meaning
TRADED = ("hmax", "turbulence_limit", "leverage", "buy_allocation", "fill")  # rules by which actions become trades


def majority(choices: Sequence[int], ensemble_weights: Floats) -> int:
    """The choice with the largest sum of ensemble weights; of equal ones the choice of the first member."""
    votes: dict[int, float] = {}
    for choice, weight in zip(choices, ensemble_weights, strict=True):
        votes[choice] = votes.get(choice, 0.0) + float(weight)
    largest = max(votes.values())
    return next(choice for choice in choices if votes[choice] >= largest - WEIGHT_TOLERANCE)


def median_weights(weights: Floats, ensemble_weights: Floats) -> Floats:
    """Weighted median [N] over M members of their weights [M, N], each counting with its ensemble weight [M].

    If the medians together exceed the gross exposure of every member, they are scaled down to the largest of these.
    """
    order = np.argsort(weights, axis=0, kind="stable")
    values = np.take_along_axis(weights, order, 0)
    cumulative = np.cumsum(ensemble_weights[order], 0) / ensemble_weights.sum()  # [M, N]
    lower = (cumulative >= HALF - WEIGHT_TOLERANCE).argmax(0)
    upper = (cumulative > HALF + WEIGHT_TOLERANCE).argmax(0)
    columns = np.arange(weights.shape[1])
    median: Floats = (values[lower, columns] + values[upper, columns]) / 2
    gross = float(np.abs(median).sum())
    limit = float(np.abs(weights).sum(1).max())
    return median * (limit / gross) if gross > limit else median


class MemberGroup(NamedTuple):
    """Members with the same specification, evaluated as one batch.

    params: names to [M, ...]. members: [M] indices in the ensemble.
    """

    actor: Actor
    params: dict[str, Tensor]
    members: list[int]


class PolicyStrategy:
    """Target weights of trained agents, without exploration.

    All members share the rules of the environment, the mandate, and the normaliser fitted in training. Features come
    with the window. Under a mandate the members' desired weights are averaged, and one account of virtual holdings
    follows them; `state` and `restore` carry it from one process to the next.
    """

    def __init__(
        self,
        snapshots: Sequence[AgentSnapshot],
        ensemble_weights: Sequence[float] | None = None,
        name: str = "champion",
        rule: Literal["mean", "vote"] = "mean",
        feature_tables: Sequence[TableConfig] = (),
    ) -> None:
        """ensemble_weights: weights of the members, summing to 1; equal if None. rule: average of the targets, or vote.
        feature_tables: tables whose columns are among the features, for decisions on newer prices.

        Raises RunError for an empty ensemble, and for agents whose environments or features differ.
        """
        if not snapshots:
            raise RunError("an ensemble needs at least one agent")
        first = snapshots[0]
        rules, mandate, _ = _rebuild(first)
        for other in snapshots[1:]:
            if other.normaliser != first.normaliser or _rebuild(other)[:2] != (rules, mandate):
                raise RunError(
                    f"agents {first.id} and {other.id} cannot form an ensemble: their environments, mandates "
                    "or features differ"
                )
        equal = np.full(len(snapshots), 1 / len(snapshots))
        weights = equal if ensemble_weights is None else np.asarray(ensemble_weights, float)
        self._set_up(name, rule, _group_by_spec(snapshots), weights, rules, mandate, first.normaliser)
        self.data_sha256 = first.data_sha256
        self.feature_tables = tuple(feature_tables)

    def _set_up(
        self,
        name: str,
        rule: Literal["mean", "vote"],
        groups: list[MemberGroup],
        ensemble_weights: Floats,
        rules: EnvironmentConfig,
        mandate: MandateConfig | None,
        normaliser: Normaliser,
    ) -> None:
        """Set all fields but `data_sha256`. mandate: None if it bounds nothing."""
        self.name = name
        self.rule = rule
        self.groups = groups
        self.ensemble_weights = ensemble_weights
        self.mandate = mandate
        self.normaliser = normaliser
        self._set_rules(rules)
        self.feature_lookback = max(group.actor.spec.lookback for group in self.groups)
        self.lookback: int | None = self.feature_lookback
        self._forget()
        if self.account is not None:
            own = self.account.lookback
            self.lookback = None if own is None else max(own, self.feature_lookback)
        if not self.tracker.is_empty and self.lookback is not None:
            self.lookback = max(self.lookback, 2)

    def _set_rules(self, rules: EnvironmentConfig) -> None:
        self.rules = rules
        self.feature_names = self.normaliser.feature_names
        if rules.turbulence_limit > 0 and "turbulence" not in self.feature_names:
            self.feature_names = (*self.feature_names, "turbulence")

    def _forget(self) -> None:
        """Start with an account that has no past."""
        self.account = None if self.mandate is None else MandateAccount(self.mandate, self.rules.leverage)
        self.tracker = AccountTracker(self.rules, self.mandate)
        self._tracked_bar: np.datetime64 | None = None  # bar of the last decision of the tracker
        self._symbols: tuple[str, ...] = ()  # of that decision
        self.scored_decision: ScoredDecision | None = None  # the last decision, if it was made from scores

    def __repr__(self) -> str:
        members = len(self.ensemble_weights)
        features = len(self.feature_names)
        of = "one agent" if members == 1 else f"an ensemble of {members} agents"
        base = "no mandate" if self.mandate is None else f"base {self.mandate.base}"
        return f"PolicyStrategy({self.name!r}, {of}, {count_text(features, 'feature')}, {base})"

    def weights(self) -> list[Mapping[str, Tensor]]:
        """The weights that decide, of each group of members. Raises TypeError if they are not known."""
        return [params for _, params, _ in self.groups]

    def recreate(self) -> PolicyStrategy:
        """The ensemble with an account that has no past."""
        fresh = copy.copy(self)
        fresh._forget()
        return fresh

    def under(self, rules: EnvironmentConfig) -> Self:
        """The ensemble as it trades under other rules, with an account that has no past.

        What it observes stays as in training. Raises InputError for rules under which its actions mean nothing.
        """
        for name in LEARNED:
            trained, value = getattr(self.rules, name), getattr(rules, name)
            if trained != value:
                raise InputError(
                    f"environment.{name} = {value!r} gives the actions of {self.name} another meaning: it was trained "
                    f"with {trained!r}; train another agent"
                )
        other = copy.copy(self)
        other._set_rules(dataclasses.replace(self.rules, **{name: getattr(rules, name) for name in TRADED}))
        other._forget()
        return other

    def state(self) -> Mapping[str, Any] | None:
        """Virtual holdings of the mandate (`MandateAccount.state`), and under "observed" what else the agents observe.

        None without a mandate for agents that observe nothing else, and before the first decision.
        """
        account = None if self.account is None else self.account.state()
        if self.tracker.is_empty or self._tracked_bar is None:
            return account
        observation = {"time": str(self._tracked_bar), **self.tracker.state(self._symbols)}
        return {**(account or {}), "observed": observation}

    def restore(self, state: Mapping[str, Any] | None, symbols: Sequence[str]) -> None:
        """Continue from `state`; None forgets the past of the account. See `MandateAccount.restore`."""
        self._forget()
        if self.account is not None and state is not None and "weights" in state:
            self.account.restore(cast(AccountState, state), symbols)
        observation = None if state is None else state.get("observed")
        if observation is not None and not self.tracker.is_empty:
            self.tracker.restore(observation, symbols)
            self._tracked_bar = np.datetime64(observation["time"])
            self._symbols = tuple(symbols)

    def check_universe(self, symbols: Sequence[str]) -> None:
        """Raises RunError if the policy cannot trade that many symbols; only an MLP is bound to their number."""
        for actor, _, _ in self.groups:
            if actor.spec.kind == "mlp" and len(symbols) != actor.spec.assets:
                raise RunError(
                    f"strategy {self.name} was trained on {actor.spec.assets} symbols and trades only that number, "
                    f"got {len(symbols)}; train an equivariant or linear policy to trade any number"
                )

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] at the last bar of the window: the mean of the member targets, or their vote."""
        if window.features is None:
            raise RunError(f"strategy {self.name} needs the features of the decision bar")
        extras = self._extras(window, positions)
        target = self._target_weights(window, window.features, positions, extras)
        self.tracker.decided(None if target is None else torch.from_numpy(target).unsqueeze(0))
        return target

    def _extras(self, window: Window, positions: Positions) -> Tensor | None:
        """What the members observe of the account besides cash and holdings: [1, X], or None.

        The past of the account is forgotten if the last call was not at the bar before.
        """
        if self.tracker.is_empty:
            return None
        if len(window.times) < 2 or self._tracked_bar != window.times[-2]:
            self.tracker = AccountTracker(self.rules, self.mandate)
        self._tracked_bar = window.times[-1]
        self._symbols = window.symbols
        virtual = budget = None
        if self.account is not None:
            state = self.account.virtual_holdings(window, positions)
            virtual = state.weights.unsqueeze(0)
            budget = None if state.budget is None else state.budget.view(1)
        holdings = torch.from_numpy(positions.weights).unsqueeze(0)
        equity = torch.tensor([positions.equity], dtype=torch.float64)
        filled = torch.from_numpy(_last_fill(window, self.rules.fill))
        return self.tracker.observe(holdings, equity, filled, virtual, budget)

    def _target_weights(
        self, window: Window, features: Floats, positions: Positions, extras: Tensor | None
    ) -> Floats | None:
        features = features.reshape(-1, *features.shape[-2:])  # [B, N, F], the decision bar last
        self.scored_decision = None
        if self._turbulence_exceeded(features[-1]):
            return np.zeros(len(window.symbols))
        rows = torch.from_numpy(normalise(features[..., : len(self.normaliser.feature_names)], self.normaliser))
        tradable = torch.from_numpy(window.tradable[-len(features) :])  # [B, N]
        inputs = DecisionInputs(rows, tradable, torch.from_numpy(positions.weights).unsqueeze(0), extras)
        scale = None if self.account is not None else positions.equity
        self.scored_decision = self.scored_decision_of(inputs, window.times[-1], scale)
        if self.account is not None:
            return self.account.target_weights(self._scores(inputs), self._combine, window, positions)
        if self.rule == "vote" and self.rules.kind == "discrete":
            return self._vote_on_choices(inputs)
        prices = torch.from_numpy(np.where(window.tradable[-1], window.close[-1], 1.0))
        targets: Floats = np.empty((len(self.ensemble_weights), len(window.symbols)))
        for actor, params, members in self.groups:
            equity = torch.full((len(members),), positions.equity, dtype=torch.float64)
            weights = target_weights(actor, params, _repeat(inputs, members), equity, prices, self.rules)
            targets[members] = weights.numpy()
        return self._combine(targets)

    def scored_decision_of(
        self, inputs: DecisionInputs, time: np.datetime64, equity: float | None = None
    ) -> ScoredDecision:
        """The decision at a bar as one from the mean of the members' scores. inputs, equity: as for `_scores`."""
        ensemble_weights = torch.from_numpy(self.ensemble_weights)
        return ScoredDecision(
            time,
            self.normaliser.feature_names,
            inputs.features,
            inputs.tradable[-1].numpy(),
            lambda rows: ensemble_weights @ self._scores(inputs._replace(features=rows), equity),
        )

    def _combine(self, targets: Floats) -> Floats:
        """Ensemble weights [N] from the weights of the members [M, N]: their mean, or weighted median."""
        if self.rule == "vote":
            return median_weights(targets, self.ensemble_weights)
        mean: Floats = self.ensemble_weights @ targets
        return mean

    def _scores(self, inputs: DecisionInputs, equity: float | None = None) -> Tensor:
        """Scores [M, N] float64 of the members. inputs, equity: one account; equity is None under a mandate."""
        scores = torch.empty(len(self.ensemble_weights), inputs.holdings.shape[-1], dtype=torch.float64)
        for actor, params, members in self.groups:
            equities = None if equity is None else torch.full((len(members),), equity, dtype=torch.float64)
            scores[members] = asset_scores(actor, params, _repeat(inputs, members), self.rules, equities)
        return scores

    def _vote_on_choices(self, inputs: DecisionInputs) -> Floats:
        """Weights [N] after the discrete action with the most votes. inputs: inputs of one account."""
        votes = [0] * len(self.ensemble_weights)
        for actor, params, members in self.groups:
            choice_values = choices(actor, params, _repeat(inputs, members), self.rules)
            for member, choice in zip(members, choice_values.tolist(), strict=True):
                votes[member] = choice
        choice = torch.tensor([majority(votes, self.ensemble_weights)])
        weights = choices_as_weights(choice, inputs.holdings, inputs.tradable[-1], rules=rules_of(self.rules))
        return np.asarray(weights[0].numpy(), dtype=np.float64)

    def _turbulence_exceeded(self, features: Floats) -> bool:
        """Whether turbulence (equal for all assets) exceeds the limit of the training environment."""
        if self.rules.turbulence_limit <= 0:
            return False
        column = torch.from_numpy(features[:, self.feature_names.index("turbulence")])
        above = turbulent_bars(column, self.rules.turbulence_limit)
        return above is not None and bool(above.any())


def _repeat(inputs: DecisionInputs, members: Sequence[int]) -> DecisionInputs:
    """Inputs of one account, [1, ...], for each of some members, [M, ...]."""
    holdings = inputs.holdings.expand(len(members), -1)
    extras = inputs.extras
    return inputs._replace(holdings=holdings, extras=None if extras is None else extras.expand(len(members), -1))


def _last_fill(window: Window, rule: str) -> Floats:
    """Price [N] at which the decision of the bar before was filled, relative to the close of that bar."""
    ratio = np.ones(len(window.symbols))
    if rule == "next" and len(window.times) > 1:
        price = window.close if window.open is None else window.open
        filled = window.tradable[-1] & window.tradable[-2]
        ratio[filled] = price[-1, filled] / window.close[-2, filled]
    return ratio


def _group_by_spec(snapshots: Sequence[AgentSnapshot]) -> list[MemberGroup]:
    """Group members of equal specification, in order of first appearance."""
    specs = [snapshot.spec for snapshot in snapshots]
    groups = []
    for first in sorted({specs.index(spec) for spec in specs}):
        members = [i for i, spec in enumerate(specs) if spec == specs[first]]
        params = {name: torch.stack([snapshots[i].weights[name] for i in members]) for name in snapshots[first].weights}
        groups.append(MemberGroup(_rebuild(snapshots[first])[2], params, members))
    return groups


def _rebuild(snapshot: AgentSnapshot) -> tuple[EnvironmentConfig, MandateConfig | None, Actor]:
    """Environment config, active mandate and actor of a snapshot. Raises RunError for one of another version."""
    facts = snapshot.spec
    try:
        algorithm = facts["algorithm"]
        rules = EnvironmentConfig(**facts["environment"])
        mandate = facts["mandate"]
        if mandate is not None:
            groups = tuple(GroupConfig(group["name"], tuple(group["symbols"])) for group in mandate["groups"])
            mandate = MandateConfig(**{**mandate, "groups": groups})
        shape = {field.name: facts[field.name] for field in dataclasses.fields(PolicySpec)}
        spec = PolicySpec(**{**shape, "hidden": tuple(shape["hidden"])})
        return rules, active_mandate(mandate), make_actor(algorithm, spec)
    except (KeyError, TypeError, ConfigError) as error:
        if isinstance(error, ConfigError) and snapshot.version == __version__:  # a part that is not in this process
            raise RunError(f"agent {snapshot.id} cannot be made: {error}") from None
        raise RunError(
            f"agent {snapshot.id} was saved by finrl_pod {snapshot.version} in a format that this version cannot read; "
            "train it again"
        ) from None


# ---------------------------------------------------------------------- models of other libraries


class Model(Protocol):
    """What decides: the methods of a trained model of Stable-Baselines3 that are used."""

    def predict(self, observation: Any, *, deterministic: bool) -> tuple[Any, Any]:
        """Action [D] and a state (not kept) for one observation [1 + N + X + N * F]."""
        ...


class ModelStrategy(PolicyStrategy):
    """Target weights of a model with `predict(observation, deterministic=True)`.

    Wrappers of the environment of a model of Stable-Baselines3 are applied, see `model_wrappers`: VecNormalize with its
    statistics. Recurrent models start afresh at each bar.
    """

    def __init__(
        self,
        model: Model,
        normaliser: Normaliser,
        rules: EnvironmentConfig,
        mandate: MandateConfig,
        spec: PolicySpec,
        data_sha256: str,
        name: str = "",
    ) -> None:
        """normaliser, rules, mandate, data_sha256: facts about the market that the model was trained on. spec: kind and
        size of its actions, and its number of assets. name: default, the class of the model.
        """
        extras = account_extras(rules, active_mandate(mandate)).size(spec.assets)
        self._view = model_view(model, 1 + spec.assets + extras + spec.assets * spec.features)
        # Without weights of its own: the dtype of the observations is taken from here.
        group = MemberGroup(_ModelActor(model, spec, self._view), {"dtype": torch.empty(0)}, [0])
        self._set_up(
            name or type(model).__name__, "mean", [group], np.ones(1), rules, active_mandate(mandate), normaliser
        )
        self.data_sha256 = data_sha256
        self._model = model

    def weights(self) -> list[Mapping[str, Tensor]]:
        """The tensors by name of the torch module `policy` of the model. Raises TypeError if it has none."""
        policy = getattr(self._model, "policy", None)
        if not isinstance(policy, torch.nn.Module):
            raise TypeError(f"the weights of {type(self._model).__name__} are not known")
        return [{**policy.state_dict(), **self._view.statistics}]


class _ModelActor:
    """The decisions of a model as an actor of one account."""

    def __init__(self, model: Model, spec: PolicySpec, view: ModelView) -> None:
        self.model = model
        self.spec = spec
        self.view = view
        self._scale = action_scale(spec.action)

    def action(
        self,
        params: Mapping[str, Tensor],  # noqa: ARG002  the model has its own
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  the views do not show it
    ) -> Tensor:
        """Actions [1, 1, 1, D] as the environment takes them. features: [1, 1, N, F]; account: [1, 1, 1, own]."""
        row = torch.cat([account.flatten(), features.flatten()]).clamp(-OBSERVATION_BOUND, OBSERVATION_BOUND).numpy()
        prediction = self.model.predict(self.view.observation(row), deterministic=True)[0]
        choice_values = np.asarray(self.view.action(prediction))
        size = 1 if self.spec.action == "discrete" else self.spec.action_size
        if choice_values.size != size or not np.isfinite(choice_values).all():
            raise InputError(
                f"predict() of {type(self.model).__name__} must return {count_text(size, 'finite action')} for an "
                f"observation of shape {row.shape}, got {choice_values!r:.80}"
            )
        if self.spec.action == "discrete":
            return torch.from_numpy(choice_values.astype(np.int64)).view(1, 1, 1, 1)
        action = choice_values.astype(np.float32).clip(-1.0, 1.0) * np.float32(self._scale)
        return torch.from_numpy(action).view(1, 1, 1, size)

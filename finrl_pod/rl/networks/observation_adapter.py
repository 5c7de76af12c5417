"""Adapters between environments and networks: observations as stored items and as model inputs, and effects of actions.

Market environments give (bar, account) with the features in a shared table; all others give flat rows [P, E, S]. Replay
buffers and networks work on items: a group of A accounts that share a bar, or one environment (A = 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from finrl_pod.market.actions import scores_to_weights
from finrl_pod.market.mandate import TILT_SCALE
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.protocols import CentralCriticVecEnv, VecEnv
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.lookback import FeatureTable, LookbackEncoder, PastRows, past_of_windows
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import AgentConfig, OnPolicyConfig, TrainedAgentConfig
from finrl_pod.types import Observation, Tensor

# Actions in [-1, 1] are multiplied by this before a softmax turns them into weights: 5 against 19 times -5 is 0.999 of
# the account.
SCORE_SCALE = 5.0
OBSERVATION_BOUND = 1e6  # flat rows for other libraries are clipped to it: Gymnasium requires finite bounds

ItemFields = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class ModelInput(NamedTuple):
    """Input of R networks: K items of A accounts.

    account: [R, K, A, W], cash, holdings and extras (W = `PolicySpec.own`), or the flat row. features:
    [R, K, N, F], None off a market.
    tradable: [R, K, N] bool, None if all assets are. past: look-back windows for networks with an encoder.
    """

    account: Tensor
    features: Tensor | None = None
    tradable: Tensor | None = None
    past: PastRows | None = None

    def copies(self, count: int) -> ModelInput:
        """Input repeated for `count` networks of each member: [R * count, ...]."""
        if count == 1:
            return self
        features, tradable = (None if x is None else repeat(x, count) for x in (self.features, self.tradable))
        past = None if self.past is None else self.past.copies(count)
        return ModelInput(repeat(self.account, count), features, tradable, past)

    def with_codes(self, encoder: LookbackEncoder, params: Params) -> ModelInput:
        """Input whose features are joined by the codes of their windows."""
        assert self.features is not None
        assert self.past is not None
        return self._replace(features=encoder.join(params, self.features, self.past), past=None)

    def flat(self) -> Tensor:
        """Flat rows [R, K * A, S]: the account, then the features of the bar, asset by asset."""
        r, k, a, w = self.account.shape
        if self.features is None:
            return self.account.reshape(r, k * a, w)
        table = self.features.reshape(r, k, 1, -1).expand(r, k, a, -1)
        return torch.cat([self.account, table], -1).reshape(r, k * a, -1)


def repeat(x: Tensor, count: int) -> Tensor:
    """[R, ...] -> [R * count, ...] with the copies of a row next to each other."""
    return x.unsqueeze(1).expand(x.shape[0], count, *x.shape[1:]).reshape(x.shape[0] * count, *x.shape[1:])


class MarketAdapter:
    """Converts observations and actions of a market for networks; items store bars: indices into the feature table.

    item_fields: tensors of the observation of an item, name -> (shape, dtype).
    """

    def __init__(self, env: MarketVecEnv, spec: PolicySpec, dtype: torch.dtype) -> None:
        market = env.market
        decision_tradable = market.tradable[env.first : env.last + 2]
        self.spec = spec
        self.groups = env.groups
        self.accounts = env.accounts
        self.dtype = dtype
        self.features = market.features.to(dtype)
        self.tradable = None if bool(decision_tradable.all()) else market.tradable
        self._table = None if spec.encoder == "none" else FeatureTable(self.features, market.tradable, spec.lookback)
        self._leverage = env.config.leverage
        self.item_fields: ItemFields = {
            "bar": ((), torch.int64),
            "account": ((env.accounts, spec.own), dtype),
        }

    def encode(self, observation: Observation) -> dict[str, Tensor]:
        """Encode an observation as items to store: name -> [P, G, *shape]."""
        bar, account = observation
        p, groups = bar.shape
        return {"bar": bar, "account": account.view(p, groups, self.accounts, -1).to(self.dtype)}

    def decode(self, items: Mapping[str, Tensor]) -> ModelInput:
        """Decode items [P, K, ...] to a model input."""
        bar = items["bar"]
        tradable = None if self.tradable is None else self.tradable[bar]
        past = None if self._table is None else self._table.past(bar)
        return ModelInput(items["account"], self.features[bar], tradable, past)

    def effect(self, action: Tensor, obs: ModelInput) -> Tensor:
        """Effect of actions [R, K, A, D], the input of critics: everything that the environment uses of them.

        Target weights [R, K, A, N] of scores, relative tilts [R, K, A, N] in [-1, 1]; shares to trade unchanged.
        """
        if self.spec.action == "tilt":
            return torch.tanh(action * TILT_SCALE)
        if not self.spec.acts_with_weights:
            return action
        all_assets = torch.ones((), dtype=torch.bool, device=action.device)
        tradable = all_assets if obs.tradable is None else obs.tradable.unsqueeze(2)
        short = self.spec.action == "direct"
        return scores_to_weights(
            action * action_scale(self.spec.action), tradable, short=short, leverage=self._leverage
        )


class FlatAdapter:
    """Adapter of environments with flat rows [P, E, S]; each environment is an item."""

    def __init__(self, env: VecEnv, spec: PolicySpec, dtype: torch.dtype) -> None:
        self.spec = spec
        self.groups = env.envs
        self.accounts = 1
        self.dtype = dtype
        self.item_fields: ItemFields = {"row": ((1, env.observation_size), dtype)}

    def encode(self, observation: Tensor) -> dict[str, Tensor]:
        return {"row": observation.unsqueeze(2).to(self.dtype)}

    def decode(self, items: Mapping[str, Tensor]) -> ModelInput:
        return ModelInput(items["row"])

    def effect(self, action: Tensor, obs: ModelInput) -> Tensor:  # noqa: ARG002
        return action


def action_scale(kind: str) -> float:
    """Factor of actions in [-1, 1] before they are passed to an environment. kind: kind of actions in `PolicySpec`."""
    return {"softmax": SCORE_SCALE, "tilt": TILT_SCALE}.get(kind, 1.0)


def row_size(spec: PolicySpec) -> int:
    """Size of a flat row: the account and N F, or N (F + C) with codes, on a market, else the observation size."""
    return spec.own + spec.assets * spec.inputs if spec.assets else spec.features


def deployed_input(spec: PolicySpec, account: Tensor, features: Tensor, tradable: Tensor | None) -> ModelInput:
    """Input of a deployed actor, see `algorithms.base.Actor`: rows of the decision bars, or windows that end there."""
    if spec.encoder == "none":
        return ModelInput(account, features, tradable)
    past = past_of_windows(features, tradable, spec.lookback)
    return ModelInput(account, features[:, :, -1], None if tradable is None else tradable[:, :, -1], past)


def spec_of(env: VecEnv, config: AgentConfig) -> PolicySpec:
    """PolicySpec of the networks of an agent for an environment."""
    if isinstance(env, MarketVecEnv):
        (_, assets, features) = env.market.shape
        extras = env.extras
    else:
        assets = 0
        features = env.observation_size
        extras = (0, 0)
    size = env.actions if env.action_kind == "discrete" else env.action_size
    activation = config.activation if isinstance(config, OnPolicyConfig) else "tanh"
    past = (
        (config.encoder, config.lookback, config.encoder_size)
        if isinstance(config, TrainedAgentConfig) and config.encoder != "none"
        else ("none", 1, 0)
    )
    shape = (assets, features, size, tuple(config.hidden))
    critic_only = env.critic_only if isinstance(env, CentralCriticVecEnv) else 0
    return PolicySpec(config.policy, *shape, env.action_kind, activation, *past, *extras, critic_only)


ObservationAdapter = MarketAdapter | FlatAdapter


def make_adapter(env: VecEnv, spec: PolicySpec, dtype: torch.dtype) -> ObservationAdapter:
    """The adapter for an environment."""
    return MarketAdapter(env, spec, dtype) if isinstance(env, MarketVecEnv) else FlatAdapter(env, spec, dtype)

"""What networks read: observations as stored items and model inputs, and codes of past rows.

Market environments give (bar, account) with the features in a shared table; all others give flat rows [P, E, S]. Replay
buffers and networks work on items: a group of A accounts that share a bar, or one environment (A = 1).

A look-back encoder computes a code of the last L rows of an asset of features, once for each distinct bar. The code
stands beside the features of the decision bar as C further inputs of a network. Codes of assets that cannot be traded
are 0; rows before the first bar are zero and not tradable.

Shapes: R networks, D distinct bars, L rows of a window, N assets, I inputs (F features and the mask), C numbers of a
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from finrl_pod.market.actions import scores_to_weights
from finrl_pod.market.mandate import TILT_SCALE
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.native.device import on_device
from finrl_pod.protocols import CentralCriticVecEnv, JointVecEnv, VecEnv
from finrl_pod.rl.networks.layers import Params, affine, select_items, uniform
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import AgentConfig, OnPolicyConfig, TrainedAgentConfig
from finrl_pod.types import Observation, Tensor

CHUNK_NUMBERS = 4_000_000  # of windows that are encoded at once where no gradient is needed


class PastRows(NamedTuple):
    """Look-back windows of K items for each of R networks: D distinct windows, and which of them each item reads.

    table: [rows, N, F + 1], features and a last column that is 1 where the asset is tradable, else 0; its features are
    0 there. starts: [R, D] int64, first row of each window. position: [R, K] int64, window of each item; None if D = K
    and every item has its own. lookback: L, rows of a window.
    """

    table: Tensor
    starts: Tensor
    position: Tensor | None
    lookback: int

    def windows(self, first: int, last: int) -> Tensor:
        """Windows first to last - 1 of each network: [R, last - first, L, N, F + 1]."""
        starts = self.starts[:, first:last]
        rows = starts.unsqueeze(-1) + torch.arange(self.lookback, device=starts.device)  # [R, D, L]
        table_rows = self.table.index_select(0, rows.reshape(-1))
        return table_rows.view(*rows.shape, *self.table.shape[1:])

    def of_items(self, codes: Tensor) -> Tensor:
        """Codes of the windows [R, D, N, C] as codes of the items [R, K, N, C]."""
        return codes if self.position is None else select_items(codes, self.position)

    def copies(self, count: int) -> PastRows:
        """Repeated for `count` networks of each member, the copies of a row next to each other."""
        position = None if self.position is None else self.position.repeat_interleave(count, 0)
        return self._replace(starts=self.starts.repeat_interleave(count, 0), position=position)


class FeatureTable:
    """Features [T, N, F] and the mask of tradable assets [T, N], preceded by L - 1 rows of zeros."""

    def __init__(self, features: Tensor, tradable: Tensor, lookback: int) -> None:
        self.table = rows_with_mask(features, tradable, lookback - 1)
        self.lookback = lookback

    def past(self, bar: Tensor) -> PastRows:
        """Look-back windows of bars [P, K].

        On a GPU rows of the items or of all bars, whichever are fewer: counting the distinct bars would wait.
        """
        bars = len(self.table) - self.lookback + 1
        if not on_device(bar.device):
            starts, position = distinct(bar)  # the window of bar t starts at row t, because L - 1 rows precede bar 0
        elif bar.shape[1] <= bars:
            starts, position = bar, None
        else:
            starts, position = torch.arange(bars, device=bar.device).expand(len(bar), -1), bar
        return PastRows(self.table, starts, position, self.lookback)


def rows_with_mask(features: Tensor, tradable: Tensor, before: int) -> Tensor:
    """Table [before + T, N, F + 1] of features [T, N, F] and the mask [T, N], behind `before` rows of zeros."""
    mask = tradable.unsqueeze(-1)
    rows = torch.cat([torch.where(mask, features, 0.0), mask.to(features.dtype)], -1)
    return torch.cat([rows.new_zeros(before, *rows.shape[1:]), rows])


def past_of_windows(features: Tensor, tradable: Tensor | None, lookback: int) -> PastRows:
    """Windows of features [P, K, B, N, F] and masks [P, K, B, N] whose last row is the decision bar; B at most L."""
    p, k, bars, n, f = features.shape
    if tradable is None:
        tradable = torch.ones(p, k, bars, n, dtype=torch.bool, device=features.device)
    rows = rows_with_mask(features.reshape(-1, n, f), tradable.reshape(-1, n), 0).view(p * k, bars, n, f + 1)
    windows = torch.cat([rows.new_zeros(p * k, lookback - bars, n, f + 1), rows], 1)
    starts = torch.arange(p * k, device=features.device).view(p, k) * lookback
    return PastRows(windows.view(-1, n, f + 1), starts, None, lookback)


def distinct(bar: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct values of each row of [P, K]: ([P, D], the position of the value of each item [P, K], or None if D = K).

    D is the most of any row; rows with fewer are filled with their smallest value.
    """
    sorted_bars, order = bar.sort(1)
    rank = torch.zeros_like(bar)
    rank[:, 1:] = (sorted_bars[:, 1:] != sorted_bars[:, :-1]).cumsum(1)
    count = int(rank[:, -1].max()) + 1
    if count == bar.shape[1]:
        return bar, None
    position = torch.empty_like(bar).scatter_(1, order, rank)
    return sorted_bars[:, :1].repeat(1, count).scatter_(1, rank, sorted_bars), position


class LookbackEncoder:
    """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078) over the window, in the form of `torch.nn.GRU`.

    The state starts at 0 and stays as it is at rows where the asset cannot be traded. Names of parameters begin with
    the prefix and "lookback_".
    """

    def __init__(self, spec: PolicySpec, prefix: str = "") -> None:
        self.spec = spec
        self.prefix = f"{prefix}lookback_"

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Initial tensors of one network."""
        c = self.spec.encoder_size
        tensors = {
            "input_w": uniform(self.spec.features + 1, 3 * c, c, generator, dtype),
            "input_b": uniform(1, 3 * c, c, generator, dtype)[0],
            "state_w": uniform(c, 3 * c, c, generator, dtype),
            "state_b": uniform(1, 3 * c, c, generator, dtype)[0],
        }
        return {f"{self.prefix}{name}": x for name, x in tensors.items()}

    def join(self, params: Params, features: Tensor, past: PastRows) -> Tensor:
        """Features [R, K, N, F] of the decision bars, with the codes of their windows: [R, K, N, F + C]."""
        return torch.cat([features, past.of_items(self.codes(params, past))], -1)

    def codes(self, params: Params, past: PastRows) -> Tensor:
        """Codes of the distinct windows [R, D, N, C]."""
        networks, count = past.starts.shape
        size = count
        if not torch.is_grad_enabled():
            size = max(1, CHUNK_NUMBERS // (networks * past.lookback * past.table[0].numel()))
        parts = []
        for first in range(0, count, size):
            windows = past.windows(first, min(first + size, count))
            parts.append(self.encode(params, windows) * windows[:, :, -1, :, -1:])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def encode(self, params: Params, windows: Tensor) -> Tensor:
        """Last states [R, D, N, C] of windows [R, D, L, N, I], whose last input is the mask."""
        input_w, input_b, state_w, state_b = (
            params[f"{self.prefix}{name}"] for name in ("input_w", "input_b", "state_w", "state_b")
        )
        r, d, rows, n, inputs = windows.shape
        x = windows.transpose(1, 2).reshape(r, rows, d * n, inputs)
        gates = affine(x, input_w, input_b)  # [R, L, D N, 3 C]: reset, update, candidate
        state = x.new_zeros(r, d * n, self.spec.encoder_size)
        for row, is_known in zip(gates.unbind(1), x[..., -1:].unbind(1), strict=True):
            own = affine(state, state_w, state_b)
            (to_reset, to_update, fresh) = row.chunk(3, -1)
            (reset, update, own_candidate) = own.chunk(3, -1)
            candidate = torch.tanh(torch.addcmul(fresh, torch.sigmoid(to_reset + reset), own_candidate))
            share = torch.sigmoid(-(to_update + update)) * is_known  # by which the state moves
            state = torch.lerp(state, candidate, share)
        return state.view(r, d, n, -1)


def make_lookback_encoder(spec: PolicySpec, prefix: str = "") -> LookbackEncoder | None:
    """The encoder of a specification; None if it has none."""
    return None if spec.encoder == "none" else LookbackEncoder(spec, prefix)


class PolicyInputs:
    """What a policy reads of a market table: features and, if there is an encoder, codes of its actor or critic.

    Actor and critic have an encoder each; its parameters are part of the policy parameters.
    """

    def __init__(self, spec: PolicySpec, features: Tensor, tradable: Tensor | None) -> None:
        """features: [T, N, F]; tradable: [T, N] bool, or None if every asset always is."""
        self.features = features
        self.tradable = tradable
        self._encoders = (make_lookback_encoder(spec), make_lookback_encoder(spec, "value_"))
        self._table = None
        if self._encoders[0] is not None:
            every = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
            self._table = FeatureTable(features, every if tradable is None else tradable, spec.lookback)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Initial parameters of the encoders of one member."""
        return {
            name: x for each in self._encoders if each is not None for name, x in each.init(generator, dtype).items()
        }

    def of_actor(self, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows for bars [P, K], with codes of the actor: features [P, K, N, F + C] and the mask [P, K, N] or None."""
        return self._join(self._encoders[0], params, bar)

    def of_critic(self, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `of_actor`, with codes of the critic."""
        return self._join(self._encoders[1], params, bar)

    def _join(self, encoder: LookbackEncoder | None, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        features = self.features[bar]
        tradable = None if self.tradable is None else self.tradable[bar]
        if encoder is None or self._table is None:
            return features, tradable
        return encoder.join(params, features, self._table.past(bar)), tradable


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
        self.item_fields: ItemFields = {"bar": ((), torch.int64), "account": ((env.accounts, spec.own), dtype)}

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
    """Adapter of environments with flat rows [P, E, S]; each environment is an item.

    Of the agents of a market that share a network, M together are an item. agents: M, 1 without a `JointVecEnv`.
    """

    def __init__(self, env: VecEnv, spec: PolicySpec, dtype: torch.dtype) -> None:
        self.spec = spec
        self.agents = max(1, env.agents) if isinstance(env, JointVecEnv) else 1
        self.accounts = self.agents if isinstance(env, JointVecEnv) and env.is_shared else 1
        self.groups = env.envs // self.accounts
        self.dtype = dtype
        self.item_fields: ItemFields = {"row": ((self.accounts, env.observation_size), dtype)}

    def encode(self, observation: Tensor) -> dict[str, Tensor]:
        rows = observation.reshape(observation.shape[0], -1, self.accounts, observation.shape[-1])
        return {"row": rows.to(self.dtype)}

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

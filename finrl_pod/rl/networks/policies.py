"""Policies on the shared market table. Parameters are [P, ...].

A policy is a pure function of its parameters, the rows of the table for K groups, and the A accounts of each group. It
returns the mean of a Gaussian over scores, the log standard deviation, and the value.
"""

# ruff: noqa: ARG002 (arguments of the interface)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.rl.native.kernels import LANES, asset_scores, tanh_of_sum
from finrl_pod.rl.networks.layers import (
    AssetEncoder,
    Params,
    affine,
    extras_by_asset,
    init_extras,
    mean_over_assets,
    product,
    split_extras,
    uniform,
    weighted_codes,
)
from finrl_pod.types import Tensor
from finrl_pod.user_files import check_name, custom_object, custom_part_hint, error_text, unpinned

WEIGHT_FLOOR = 1e-3  # smallest relative holding whose logarithm is taken
INITIAL_LOG_STD = 0.0
INITIAL_INERTIA = 0.7  # new agents mostly keep their holdings: low turnover, and exploration that persists over days


class PolicyOutput(NamedTuple):
    """mean: [P, K, A, D] of the scores; log_std: [P, D], [P, 1] or [P, K, A, D]; value: [P, K, A]."""

    mean: Tensor
    log_std: Tensor
    value: Tensor


@dataclass(frozen=True)
class PolicySpec:
    """Shapes and kinds of the inputs and outputs of a policy.

    kind: "equivariant", "linear" or "mlp". assets: N, 0 for environments with flat observations. features: F of an
    asset, or numbers in a flat row. action_size: D; N + 1 scores with cash first, or N without cash. action: "softmax"
    if the environment turns scores into weights by a softmax, "tilt" if they tilt the weights of a base portfolio (new
    agents have scores of 0), "direct" if it takes them as they are, "discrete" for a choice of D actions.
    activation: "tanh" or "relu", of hidden layers of an MLP. encoder: "none", or a kind of encoder of the last
    `lookback` rows; encoder_size: numbers of its code. extra_per_asset, extra_per_account: numbers of an account after
    cash and holdings, see `account_extras.py`. critic_only: numbers at the end of a flat row that only the critic of an
    MLP reads.
    """

    kind: str
    assets: int
    features: int
    action_size: int
    hidden: tuple[int, ...]
    action: str = "softmax"
    activation: str = "tanh"
    encoder: str = "none"
    lookback: int = 1
    encoder_size: int = 0
    extra_per_asset: int = 0
    extra_per_account: int = 0
    critic_only: int = 0

    @property
    def inputs(self) -> int:
        """Numbers of an asset that networks read: its features, and its code if there is an encoder."""
        return self.features + self.encoder_size

    @property
    def own(self) -> int:
        """Size of an account: cash, holdings and extras, or a whole flat row."""
        return 1 + self.assets * (1 + self.extra_per_asset) + self.extra_per_account if self.assets else self.features

    @property
    def has_extras(self) -> bool:
        """Whether an account has numbers besides cash and holdings."""
        return self.extra_per_asset > 0 or self.extra_per_account > 0

    @property
    def has_cash_score(self) -> bool:
        """True if the first score belongs to cash."""
        return self.action_size == self.assets + 1

    @property
    def acts_with_weights(self) -> bool:
        """Whether an action stands for target weights, not for shares to trade."""
        return self.assets > 0 and self.has_cash_score and self.action != "discrete"


class PolicyInit(NamedTuple):
    """Initial log standard deviation of actions, and whether the weights of an MLP start orthogonal (else uniform)."""

    log_std: float = INITIAL_LOG_STD
    orthogonal: bool = True


DEFAULT_INIT = PolicyInit()


class Policy(ABC):
    """A pure function with named parameters; the standard deviation of its scores does not depend on the state.

    width: size of the widest layer for one account.
    """

    def __init__(self, spec: PolicySpec) -> None:
        """spec: numbers of assets, features and actions, and the sizes of hidden layers."""
        self.spec = spec
        self.width = max(spec.hidden, default=0) + spec.assets + 1

    @abstractmethod
    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        """Initial tensors of one member."""

    @abstractmethod
    def mean(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Mean scores [P, K, A, D]; account: [P, K, A, own]; tradable: [P, K, N] bool or None.

        features: [P, K, N, F], or [P, K, N, F + C] with the codes of an encoder.
        """

    @abstractmethod
    def value(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Values [P, K, A], arguments as in `mean`."""

    def decide(
        self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean scores and their log standard deviation [P, D or 1] or [P, K, A, D]; [P, 0] if actions are discrete."""
        mean = self.mean(params, features, account, tradable)
        return mean, params["log_std"] if "log_std" in params else mean.new_empty(mean.shape[0], 0)

    def forward(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> PolicyOutput:
        """Mean scores, their log standard deviation, and values."""
        mean, log_std = self.decide(params, features, account, tradable)
        return PolicyOutput(mean, log_std, self.value(params, features, account, tradable))


class HoldingScores(NamedTuple):
    """Scores that depend on the holding of their own asset only: linear [P, K, N], plus `asset_scores` of the rest.

    code: [P, K, N, S]; holding_w, score_w: [P, S]. All three are None if scores do not depend on holdings.
    """

    linear: Tensor
    code: Tensor | None = None
    holding_w: Tensor | None = None
    score_w: Tensor | None = None


class MarketPolicy(Policy):
    """A policy that computes what depends on the market alone before it reads accounts.

    Loops over bars compute that part for many bars at once.
    """

    @property
    def has_holding_scores(self) -> bool:
        """Whether `holding_scores` can be used: compiled loops over bars need it."""
        return False

    def holding_scores(self, params: Params, features: Tensor, tradable: Tensor | None) -> HoldingScores:
        """Scores as functions of the holdings, float32; arguments as in `mean`."""
        raise NotImplementedError(f"{type(self).__name__} has no such scores")

    @abstractmethod
    def market_part(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, ...]:
        """What `scores` needs of the market, tensors [P, K, ...]; arguments as in `mean`."""

    @abstractmethod
    def scores(self, params: Params, part: tuple[Tensor, ...], account: Tensor) -> Tensor:
        """Mean scores [P, K, A, D] of accounts [P, K, A, own] on a market part of the same P and K."""

    def mean(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        return self.scores(params, self.market_part(params, features, tradable), account)


class BasePolicy(Policy):
    """Base of custom policies: subclasses define `weights`, `mean` and `value`.

    Every tensor of `params` has a leading dimension P: the members of a population are one batch, and none may read
    the numbers of another. discrete: True if `mean` returns the logits of choices.
    """

    discrete: ClassVar[bool] = False

    @abstractmethod
    def weights(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial weights of one member by name, float32, drawn from the generator. Weight decay acts on `w`, `*_w`."""

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        tensors = {name: weight.to(dtype) for name, weight in self.weights(generator).items()}
        if self.spec.action != "discrete":
            tensors["log_std"] = torch.full((self.spec.action_size,), start.log_std, dtype=dtype)
        return tensors


def _orthogonal(rows: int, cols: int, gain: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Orthogonal initialisation (Saxe et al. 2014) of a [rows, cols] matrix."""
    weight = torch.empty(rows, cols, dtype=dtype)
    torch.nn.init.orthogonal_(weight, gain, generator=generator)
    return weight


class EquivariantPolicy(MarketPolicy):
    """One network for every asset; their number and order do not matter.

    Features are encoded once a group (`encoder.py`); an account adds its holding to the code of each asset:

        score_n = w . tanh(mixed_n + holding_n u) + v . x_n + inertia * log(holding_n)

    The last term exists for softmax actions only: with inertia near 1 the account drifts towards a target, with 0 it
    jumps there. Holdings are in units of 1/N. The score of cash comes from the context and, through inertia, from the
    cash held. Scores of assets that cannot be traded are ignored by the environment and left out of the density.

    Distribution: Gaussian with one learned standard deviation for all scores.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.encoder = AssetEncoder(spec.inputs, spec.hidden, is_fused=True)
        self.value_encoder = AssetEncoder(spec.inputs, spec.hidden, prefix="value_", is_fused=True)

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        f = self.spec.inputs
        h = self.encoder.code_size
        k = self.encoder.mixed_size

        def draw(rows: int, cols: int, gain: float) -> Tensor:
            return _orthogonal(rows, cols, gain, generator, dtype)

        tensors = {
            **self.encoder.init(draw, dtype),
            **self.encoder.init_mix(draw, dtype),
            "holding_w": torch.randn(k, dtype=dtype, generator=generator) * 0.1,
            "score_w": draw(k, 1, 0.1)[:, 0],
            "linear_w": torch.zeros(f, dtype=dtype),
            "log_std": torch.full((1,), start.log_std, dtype=dtype),
            **self.value_encoder.init(draw, dtype),
            "value_context_w": draw(h, k, 1.0),
            "value_holding_w": draw(h, k, 1.0),
            "value_b": torch.zeros(k, dtype=dtype),
            "value_w": draw(k, 1, 0.1)[:, 0],
            "value_out_b": torch.zeros(1, dtype=dtype),
        }
        if self.spec.action == "tilt":
            tensors["score_w"].zero_()
        if self.spec.action == "softmax":
            tensors["inertia"] = torch.full((1,), INITIAL_INERTIA, dtype=dtype)
        if self.spec.has_cash_score:
            tensors["cash_w"] = torch.zeros(h, dtype=dtype)
            tensors["cash_b"] = torch.zeros(1, dtype=dtype)
        return {
            **tensors,
            **init_extras(self.spec, k, generator, dtype),
            **init_extras(self.spec, k, generator, dtype, prefix="value_"),
        }

    def market_part(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, ...]:
        """Mixed codes [P, K, N, S], linear scores [P, K, 1, N] and, if it has one, the score of cash [P, K, 1, 1]."""
        p, k, n, _ = features.shape
        assets = self.encoder.encode(params, features, tradable)
        code = self.encoder.mix(params, assets)
        linear = torch.bmm(features.reshape(p, k * n, -1), params["linear_w"].unsqueeze(-1)).view(p, k, 1, n)
        if not self.spec.has_cash_score:
            return code, linear
        cash = affine(assets.context, params["cash_w"].unsqueeze(-1), params["cash_b"]).view(p, k, 1, 1)
        return code, linear, cash

    @property
    def has_holding_scores(self) -> bool:
        is_known = type(self) is EquivariantPolicy and self.spec.action == "tilt" and not self.spec.has_extras
        return is_known and self.encoder.mixed_size % LANES == 0

    def holding_scores(self, params: Params, features: Tensor, tradable: Tensor | None) -> HoldingScores:
        code, linear = self.market_part(params, features, tradable)
        return HoldingScores(linear.squeeze(2), code, params["holding_w"], params["score_w"])

    def scores(self, params: Params, part: tuple[Tensor, ...], account: Tensor) -> Tensor:
        code, linear, *cash = part
        p, k, n, _ = code.shape
        relative = account[..., 1 : 1 + n] * n  # [P, K, A, N], in units of an equal share
        if self.spec.has_extras:
            code = code.unsqueeze(2) + extras_by_asset(self.spec, params, account, n)  # [P, K, A, N, S]
            hidden = torch.tanh(code + relative.unsqueeze(-1) * params["holding_w"].view(p, 1, 1, 1, -1))
            scores = (hidden * params["score_w"].view(p, 1, 1, 1, -1)).sum(-1)  # [P, K, A, N]
        else:
            scores = asset_scores(code, relative, params["holding_w"], params["score_w"])
        scores = scores + linear
        if cash:
            scores = torch.cat([cash[0].expand(p, k, account.shape[2], 1), scores], -1)
        return _with_inertia(scores, account, params) if self.spec.action == "softmax" else scores

    def value(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Values [P, K, A] from the context of the market and the encoded assets summed with the holdings."""
        p, k = features.shape[:2]
        a = account.shape[2]
        assets = self.value_encoder.encode(params, features, tradable)
        context = affine(assets.context, params["value_context_w"], params["value_b"])  # [P, K, S]
        n = features.shape[2]
        held_codes = weighted_codes(account[..., 1 : 1 + n], assets.code)  # [P, K, A, H]
        mixed_code = torch.bmm(held_codes.view(p, k * a, -1), params["value_holding_w"])  # [P, K * A, S]
        if self.spec.has_extras:  # averaged over the assets: their order does not matter
            extras = extras_by_asset(self.spec, params, account, n, prefix="value_").mean(3)
            mixed_code = mixed_code + extras.reshape(p, k * a, -1)
        hidden = tanh_of_sum(mixed_code.view(p * k, a, -1), context.view(p * k, -1)).view(p, k, a, -1)
        # Not a matrix product with one column: its gradient is slow on a CPU.
        return (hidden * params["value_w"].view(p, 1, 1, -1)).sum(-1) + params["value_out_b"].view(p, 1, 1)


class LinearPolicy(MarketPolicy):
    """Scores linear in the features of an asset: a parametric portfolio policy (Brandt, Santa-Clara and Valkanov 2009).

        score_n = w . x_n + u holding_n + inertia * log(holding_n)

    The holding term exists for "direct" actions, inertia for "softmax" ones, in units and roles as in
    `EquivariantPolicy`. The score of cash and the value are linear in features averaged over the tradable assets; the
    value also in features averaged with the holdings, and in the cash held. All weights start at 0.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.width = spec.inputs + spec.assets + 1

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        f = self.spec.inputs
        tensors = {
            "linear_w": torch.zeros(f, dtype=dtype),
            "log_std": torch.full((1,), start.log_std, dtype=dtype),
            "value_w": torch.zeros(2 * f + 1 + self.spec.extra_per_account, dtype=dtype),
            "value_b": torch.zeros(1, dtype=dtype),
        }
        if self.spec.extra_per_asset:
            tensors["extra_asset_w"] = torch.zeros(self.spec.extra_per_asset, dtype=dtype)
        if self.spec.action == "direct":
            tensors["holding_w"] = torch.zeros(1, dtype=dtype)
        if self.spec.action == "softmax":
            tensors["inertia"] = torch.full((1,), INITIAL_INERTIA, dtype=dtype)
        if self.spec.has_cash_score:
            tensors["cash_w"] = torch.zeros(f, dtype=dtype)
            tensors["cash_b"] = torch.zeros(1, dtype=dtype)
        return tensors

    def market_part(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, ...]:
        """Linear scores [P, K, 1, N] and, if it has one, the score of cash [P, K, 1, 1]."""
        p, k, n, _ = features.shape
        linear = product(features, params["linear_w"].unsqueeze(-1)).view(p, k, 1, n)
        if not self.spec.has_cash_score:
            return (linear,)
        mean_features = mean_over_assets(features, tradable)  # [P, K, F]
        return linear, affine(mean_features, params["cash_w"].unsqueeze(-1), params["cash_b"]).view(p, k, 1, 1)

    @property
    def has_holding_scores(self) -> bool:
        return type(self) is LinearPolicy and self.spec.action == "tilt" and not self.spec.has_extras

    def holding_scores(self, params: Params, features: Tensor, tradable: Tensor | None) -> HoldingScores:
        (linear,) = self.market_part(params, features, tradable)
        return HoldingScores(linear.squeeze(2))

    def scores(self, params: Params, part: tuple[Tensor, ...], account: Tensor) -> Tensor:
        linear, *cash = part
        p, k, _, n = linear.shape
        a = account.shape[2]
        scores = linear.expand(p, k, a, n)
        if self.spec.extra_per_asset:
            blocks, _ = split_extras(self.spec, account, n)
            scores = scores + torch.einsum("pkabn,pb->pkan", blocks * n, params["extra_asset_w"])
        if self.spec.action == "direct":
            scores = torch.addcmul(scores, account[..., 1 : 1 + n] * n, params["holding_w"].view(p, 1, 1, 1))
        if cash:
            scores = torch.cat([cash[0].expand(p, k, a, 1), scores], -1)
        return _with_inertia(scores, account, params) if self.spec.action == "softmax" else scores

    def value(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Values [P, K, A]."""
        p, k = features.shape[:2]
        a = account.shape[2]
        mean_features = mean_over_assets(features, tradable).unsqueeze(2).expand(p, k, a, -1)
        n = features.shape[2]
        held_features = weighted_codes(account[..., 1 : 1 + n], features.contiguous())
        _, numbers = split_extras(self.spec, account, n)
        x = torch.cat([mean_features, held_features, account[..., :1], numbers], -1)  # [P, K, A, 2 F + 1 + extras]
        return (x * params["value_w"].view(p, 1, 1, -1)).sum(-1) + params["value_b"].view(p, 1, 1)


def _with_inertia(scores: Tensor, account: Tensor, params: Params) -> Tensor:
    """Scores [P, K, A, 1 + N] plus inertia times the logarithms of cash and holdings in units of 1/N."""
    size = scores.shape[-1]
    log_holdings = (account[..., :size] * (size - 1)).clamp(min=WEIGHT_FLOOR).log()
    return torch.addcmul(scores, log_holdings, params["inertia"].view(-1, 1, 1, 1))


class MlpPolicy(MarketPolicy):
    """An MLP on the flat observation [account, features of all assets], with separate actor and critic.

    The first layer is split: the part of the table is computed once a group, the part of the account once an account.
    Their sum is the product of the flat row with one [1 + N + N F, H] matrix.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.width = max(spec.hidden) + spec.own

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        s = self.spec
        table = s.assets * s.inputs
        tensors: dict[str, Tensor] = {}
        for tower, out, gain in (("actor", s.action_size, 0.01), ("critic", 1, 1.0)):
            own = s.own - s.critic_only if tower == "actor" else s.own
            sizes = [table + own, *s.hidden, out]
            for i, (fan_in, to) in enumerate(pairwise(sizes)):
                last = i == len(sizes) - 2
                if last and tower == "actor" and s.action == "tilt":
                    weight = torch.zeros(fan_in, to, dtype=dtype)
                    bias = torch.zeros(to, dtype=dtype)
                elif start.orthogonal:
                    weight = _orthogonal(fan_in, to, gain if last else math.sqrt(2), generator, dtype)
                    bias = torch.zeros(to, dtype=dtype)
                else:
                    weight = uniform(fan_in, to, fan_in, generator, dtype)
                    bias = uniform(1, to, fan_in, generator, dtype)[0]
                if i:
                    tensors[f"{tower}_w{i}"] = weight
                else:
                    tensors[f"{tower}_table_w"] = weight[:table]
                    tensors[f"{tower}_own_w"] = weight[table:]
                tensors[f"{tower}_b{i}"] = bias
        if s.action != "discrete":
            tensors["log_std"] = torch.full((s.action_size,), start.log_std, dtype=dtype)
        return tensors

    # The mask is not read: features of assets that are not tradable are 0.
    def market_part(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, ...]:
        """The part of the table in the first layer: [P, K, H]."""
        return (self._base("actor", params, features),)

    def scores(self, params: Params, part: tuple[Tensor, ...], account: Tensor) -> Tensor:
        return self._last("actor", params, self._hidden("actor", params, part[0], account))

    def value(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        hidden = self._hidden("critic", params, self._base("critic", params, features), account)
        return self._last("critic", params, hidden).squeeze(-1)

    def _base(self, name: str, params: Params, features: Tensor) -> Tensor:
        """The first layer of the features alone: [P, K, H]. Over 0 features, of a flat row, the bias is left."""
        return torch.baddbmm(params[f"{name}_b0"].unsqueeze(1), features.flatten(2), params[f"{name}_table_w"])

    def _last(self, name: str, params: Params, hidden: Tensor) -> Tensor:
        last = len(self.spec.hidden)
        return affine(hidden, params[f"{name}_w{last}"], params[f"{name}_b{last}"])

    def _hidden(self, name: str, params: Params, base: Tensor, account: Tensor) -> Tensor:
        """Output of the last hidden layer: [P, K, A, H]. base: [P, K, H], the first layer of the features."""
        p, k = base.shape[:2]
        weight = params[f"{name}_own_w"]
        own = torch.bmm(account.reshape(p, -1, self.spec.own)[..., : weight.shape[1]], weight)  # [P, K A, H]
        x = self._sum(own.view(p * k, account.shape[2], -1), base.view(p * k, -1))
        x = x.view(*account.shape[:3], -1)
        for i in range(1, len(self.spec.hidden)):
            weight = params[f"{name}_w{i}"]
            bias = params[f"{name}_b{i}"]
            flat = torch.bmm(x.reshape(p, -1, x.shape[-1]), weight)  # [P, K A, H]
            x = self._sum(flat, bias).view(*x.shape[:-1], -1)
        return x

    def _sum(self, x: Tensor, base: Tensor) -> Tensor:
        """Activation of x [B, R, H] + base [B, H]."""
        return tanh_of_sum(x, base) if self.spec.activation == "tanh" else torch.relu(x + base.unsqueeze(1))


MakePolicy = Callable[[PolicySpec], Policy]
_POLICIES: dict[str, MakePolicy] = {"equivariant": EquivariantPolicy, "linear": LinearPolicy, "mlp": MlpPolicy}
BUILT_IN_POLICIES = tuple(_POLICIES)


def register_policy(name: str) -> Callable[[type], type]:
    """Decorator that registers a class made as Class(spec), for `agent.policy = name`.

    Raises ConfigError for the name of a built-in policy and an object that is no policy, InputError for no name.
    """
    check_name("policy", name)
    if name in BUILT_IN_POLICIES:
        raise ConfigError(f"the policy {name!r} is built in; choose another name")

    def add(policy: type) -> type:
        _check_class(name, policy)
        _POLICIES[name] = policy
        return policy

    return add


def policy_maker(kind: str) -> MakePolicy:
    """What makes a policy of a spec: a registered name, file.py:Class, or package.module:Class.

    Raises ConfigError for an unknown kind and for an object that is no policy, InputError for a file that cannot be
    used.
    """
    if kind in _POLICIES:
        return _POLICIES[kind]
    custom_class = custom_object(kind, f"the policy {kind}")
    if custom_class is None:
        raise ConfigError(
            f"agent.policy must be one of {', '.join(_POLICIES)}, got {kind!r}; {custom_part_hint('policies', kind)}"
        )
    _check_class(kind, custom_class)
    make: MakePolicy = custom_class
    return make


def _check_class(kind: str, custom_class: object) -> None:
    """Raises ConfigError for an object that is no policy."""
    if missing := [name for name in ("init", "forward", "mean", "decide", "value") if not hasattr(custom_class, name)]:
        raise ConfigError(
            f"the policy {unpinned(kind)} has no {missing[0]}; derive it from finrl_pod.BasePolicy, "
            "as finrl-pod new policy does"
        )


def make_policy(spec: PolicySpec) -> Policy:
    """The policy of kind `spec.kind`. Raises as `policy_maker`, ConfigError for one that cannot read flat rows."""
    policy = policy_maker(spec.kind)(spec)
    if not spec.assets and isinstance(policy, BasePolicy):
        _try_on_rows(policy)
    return policy


def _try_on_rows(policy: BasePolicy) -> None:
    """Raises ConfigError for a policy of users that fails on the observations of an environment without assets."""
    spec = policy.spec
    name = unpinned(spec.kind)
    hint = (
        f"in an environment without assets the observation is `account`, [P, K, A, {spec.own}], and `features` is empty"
    )
    tensors = policy.init(torch.Generator().manual_seed(0), torch.float32)
    params = {key: x.unsqueeze(0) for key, x in tensors.items()}
    try:
        out = policy.forward(params, torch.zeros(1, 1, 0, 0), torch.zeros(1, 1, 2, spec.own), None)
    except Exception as error:
        raise ConfigError(f"the policy {name} does not fit: {hint}; it raised {error_text(error)}") from error
    if (expected := (1, 1, 2, spec.action_size)) != tuple(out.mean.shape):
        raise ConfigError(
            f"the mean of the policy {name} must have shape {expected}, got {tuple(out.mean.shape)}: {hint}"
        )


LINEAR = "linear_w"  # weights [F, ..] of the features in the score of an asset, in every policy that has them


def with_start(members: Sequence[Params], start: Tensor | None, scale: float = 1.0) -> Sequence[Params]:
    """Initial tensors of P members whose scores are linear in the features, with the weights `start`.

    start: weights [F] for all or [P, F] for each, None for new weights. scale: an action in units of a score. Weights
    of an code and of further heads (a standard deviation) keep their initial values.
    """
    if start is None:
        return members
    rows = []
    for tensors, solution in zip(members, start.expand(len(members), -1) / scale, strict=True):
        weights = tensors[LINEAR].clone()
        scores = weights[: len(solution)]
        (scores if scores.dim() == 1 else scores[:, 0]).copy_(solution.to(weights))
        rows.append({**tensors, LINEAR: weights})
    return rows

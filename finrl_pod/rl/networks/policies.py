"""Policies over the shared market table, each with its parameters as [P, ...].

A policy is a pure function of parameters, the table's rows for K groups, and A accounts a group. It returns the mean
of a Gaussian over scores, the logarithm of its standard deviation, and the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.rl.native.kernels import asset_scores, tanh_of_sum
from finrl_pod.rl.networks.layers import uniform
from finrl_pod.types import Tensor

WEIGHT_FLOOR = 1e-3  # holdings below a tenth of a per cent count as a tenth: log(0) has no slope
INITIAL_LOG_STD = 0.0
INITIAL_INERTIA = 0.7  # a new agent mostly keeps what it holds: it trades little, and its exploration lasts over days


class PolicyOutput(NamedTuple):
    """mean: [P, K, A, D] of the scores; log_std: [P, D], [P, 1] or [P, K, A, D]; value: [P, K, A]."""

    mean: Tensor
    log_std: Tensor
    value: Tensor


@dataclass(frozen=True)
class PolicySpec:
    """What sets a policy's shapes: assets N, features F of the table, action size D (N + 1: cash first; N: no cash).

    An environment of flat rows has no assets, and F numbers a row. action: "softmax" where the environment makes
    weights of the scores by a softmax, so that a score is a logarithm; "direct" where it takes them as they are;
    "discrete" where D choices are drawn from. activation: of a plain policy's hidden layers, "tanh" or "relu".
    """

    kind: str
    assets: int
    features: int
    action_size: int
    hidden: tuple[int, ...]
    action: str = "softmax"
    activation: str = "tanh"

    @property
    def own(self) -> int:
        """Numbers of an account: cash and holdings, or a whole flat row."""
        return self.assets + 1 if self.assets else self.features

    @property
    def has_cash_score(self) -> bool:
        return self.action_size == self.assets + 1

    @property
    def wants_weights(self) -> bool:
        """Whether an action stands for the weights that are wanted, not for shares to trade."""
        return self.assets > 0 and self.has_cash_score and self.action != "discrete"


class PolicyInit(NamedTuple):
    """How a policy begins. log_std: of its actions. orthogonal: a plain policy's weights, else uniform as torch's."""

    log_std: float = INITIAL_LOG_STD
    orthogonal: bool = True


DEFAULT_INIT = PolicyInit()


class Policy(Protocol):
    """A pure function with named parameters. width: numbers an account takes in its widest layer."""

    spec: PolicySpec
    width: int

    def init(self, stream: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> dict[str, Tensor]:
        """Initial tensors of one member."""
        ...

    def forward(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> PolicyOutput:
        """features: [P, K, N, F]; account: [P, K, A, 1 + N]; tradable: [P, K, N] bool, None when all are."""
        ...

    def mean(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """The mean scores alone: [P, K, A, D]."""
        ...

    def decide(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean scores [P, K, A, D] and the logarithm of their standard deviation [P, D or 1] or [P, K, A, D]."""
        ...

    def value(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """The value alone: [P, K, A]."""
        ...


def _orthogonal(rows: int, cols: int, gain: float, stream: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Orthogonal initialisation (Saxe et al. 2014) of a [rows, cols] matrix."""
    weight = torch.empty(rows, cols, dtype=dtype)
    torch.nn.init.orthogonal_(weight, gain, generator=stream)
    return weight


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x: [P, ..., I] @ weight [P, I, O] + bias [P, O] -> [P, ..., O], one batched product over P."""
    flat = x.reshape(x.shape[0], -1, x.shape[-1])  # [P, B, I]
    return torch.baddbmm(bias.unsqueeze(1), flat, weight).view(*x.shape[:-1], weight.shape[-1])


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """tanh(x @ weight + bias) of [P, ..., I] -> [P, ..., O]."""
    flat = x.reshape(x.shape[0], -1, x.shape[-1])  # [P, B, I]
    return tanh_of_sum(torch.bmm(flat, weight), bias).view(*x.shape[:-1], weight.shape[-1])


def _mean_over_assets(x: Tensor, tradable: Tensor | None) -> Tensor:
    """Mean over N of [P, K, N, H], over the tradable assets alone."""
    if tradable is None:
        return x.mean(2)
    mask = tradable.unsqueeze(-1).to(x.dtype)
    return (x * mask).sum(2) / mask.sum(2).clamp(min=1)


class EquivariantPolicy:
    """One network for every asset; the order and the number of assets do not matter.

    A row's features are encoded for each asset and pooled into a context: once a group, not once an account. An
    account adds its holding to the asset's encoding. The score of an asset is

        score_n = w . tanh(code_n + holding_n u) + v . x_n + inertia * log(holding_n)

    so that with inertia near 1 the account drifts towards a target and with 0 it jumps there (the last term is for
    scores that a softmax turns into weights alone). Holdings are counted in
    units of 1/N. The score of cash comes from the context and from the cash held. Scores of assets that cannot be
    traded are ignored by the environment; their noise still counts in the log-probability, which cancels in ratios.
    Log-probability, entropy and KL are sums over the D scores.

    Distribution: Gaussian with one learned standard deviation for all scores, so it has no asset order either.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.width = spec, max(spec.hidden) + spec.assets + 1

    def init(self, stream: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> dict[str, Tensor]:
        f, h = self.spec.features, self.spec.hidden[0]
        k = self.spec.hidden[-1]
        tanh = 5 / 3
        tensors = {
            "encode_w": _orthogonal(f, h, tanh, stream, dtype),
            "encode_b": torch.zeros(h, dtype=dtype),
            "code_w": _orthogonal(h, k, 1.0, stream, dtype),
            "context_w": _orthogonal(h, k, 1.0, stream, dtype),
            "code_b": torch.zeros(k, dtype=dtype),
            "holding_w": torch.randn(k, dtype=dtype, generator=stream) * 0.1,
            "score_w": _orthogonal(k, 1, 0.1, stream, dtype)[:, 0],
            "linear_w": torch.zeros(f, dtype=dtype),
            "log_std": torch.full((1,), start.log_std, dtype=dtype),
            "value_encode_w": _orthogonal(f, h, tanh, stream, dtype),
            "value_encode_b": torch.zeros(h, dtype=dtype),
            "value_context_w": _orthogonal(h, k, 1.0, stream, dtype),
            "value_holding_w": _orthogonal(h, k, 1.0, stream, dtype),
            "value_b": torch.zeros(k, dtype=dtype),
            "value_w": _orthogonal(k, 1, 0.1, stream, dtype)[:, 0],
            "value_out_b": torch.zeros(1, dtype=dtype),
        }
        if self.spec.action == "softmax":
            tensors["inertia"] = torch.full((1,), INITIAL_INERTIA, dtype=dtype)
        if self.spec.has_cash_score:
            tensors["cash_w"], tensors["cash_b"] = torch.zeros(h, dtype=dtype), torch.zeros(1, dtype=dtype)
        return tensors

    def forward(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> PolicyOutput:
        mean = self.mean(params, features, account, tradable)
        return PolicyOutput(mean, params["log_std"], self.value(params, features, account, tradable))

    def decide(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.mean(params, features, account, tradable), params["log_std"]

    def mean(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """[P, K, A, D]."""
        p, k, n, _ = features.shape
        a, size = account.shape[2], params["score_w"].shape[1]
        holding = account[..., 1:]  # [P, K, A, N]
        relative = holding * n
        code = _layer(features, params["encode_w"], params["encode_b"])  # [P, K, N, H]
        context = _mean_over_assets(code, tradable)  # [P, K, H]
        shared = _affine(context, params["context_w"], params["code_b"])
        code = torch.baddbmm(
            shared.reshape(p, k, 1, size).expand(p, k, n, size).reshape(p, k * n, size),
            code.reshape(p, k * n, -1),
            params["code_w"],
        ).view(p, k, n, size)
        linear = torch.bmm(features.reshape(p, k * n, -1), params["linear_w"].unsqueeze(-1)).view(p, k, 1, n)
        scores = asset_scores(code, relative, params["holding_w"], params["score_w"])  # [P, K, A, N]
        scores = scores + linear
        if self.spec.has_cash_score:
            cash = _affine(context, params["cash_w"].unsqueeze(-1), params["cash_b"]).view(p, k, 1, 1)
            scores = torch.cat([cash.expand(p, k, a, 1), scores], -1)
        if self.spec.action == "softmax":
            kept = (account * n).clamp(min=WEIGHT_FLOOR).log()
            scores = torch.addcmul(scores, kept, params["inertia"].view(p, 1, 1, 1))
        return scores

    def value(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """[P, K, A]: the pooled market, and the market as weighted by the holdings."""
        p, k, n, _ = features.shape
        holding = account[..., 1:]
        a = holding.shape[2]
        code = _layer(features, params["value_encode_w"], params["value_encode_b"])  # [P, K, N, H]
        context = _affine(_mean_over_assets(code, tradable), params["value_context_w"], params["value_b"])
        held = torch.bmm(holding.reshape(p * k, a, n), code.view(p * k, n, -1)).view(p, k, a, -1)
        mixed = torch.bmm(held.view(p, k * a, -1), params["value_holding_w"])
        hidden = tanh_of_sum(mixed.view(p * k, a, -1), context.view(p * k, -1)).view(p, k, a, -1)
        # Not a product with one column: the gradient of that is slow on a CPU.
        return (hidden * params["value_w"].view(p, 1, 1, -1)).sum(-1) + params["value_out_b"].view(p, 1, 1)


class MlpPolicy:
    """A plain MLP on the flat observation [account, features of all assets], actor and critic apart.

    The first layer is split: the table's part is computed once a group, the account's part once an account; the sum
    is exactly the product of the flat row with one [1 + N + N F, H] matrix.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.width = spec, max(spec.hidden) + spec.own

    def init(self, stream: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> dict[str, Tensor]:
        s = self.spec
        table, own = s.assets * s.features, s.own
        tensors: dict[str, Tensor] = {}
        for tower, out, gain in (("actor", s.action_size, 0.01), ("critic", 1, 1.0)):
            sizes = [table + own, *s.hidden, out]
            for i, (fan_in, to) in enumerate(pairwise(sizes)):
                last = i == len(sizes) - 2
                if start.orthogonal:
                    weight = _orthogonal(fan_in, to, gain if last else math.sqrt(2), stream, dtype)
                    bias = torch.zeros(to, dtype=dtype)
                else:
                    weight = uniform(fan_in, to, fan_in, stream, dtype)
                    bias = uniform(1, to, fan_in, stream, dtype)[0]
                if i:
                    tensors[f"{tower}_w{i}"] = weight
                else:
                    tensors[f"{tower}_table_w"], tensors[f"{tower}_own_w"] = weight[:table], weight[table:]
                tensors[f"{tower}_b{i}"] = bias
        if s.action != "discrete":
            tensors["log_std"] = torch.full((s.action_size,), start.log_std, dtype=dtype)
        return tensors

    def forward(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> PolicyOutput:
        mean, log_std = self.decide(params, features, account, tradable)
        return PolicyOutput(mean, log_std, self.value(params, features, account, tradable))

    def decide(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        mean = self.mean(params, features, account, tradable)
        return mean, spread_of(params, mean)

    def mean(
        self,
        params: Mapping[str, Tensor],
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  features of what is not tradable are zero already
    ) -> Tensor:
        """[P, K, A, D]."""
        return self._tower("actor", params, features, account)

    def value(
        self,
        params: Mapping[str, Tensor],
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  features of what is not tradable are zero already
    ) -> Tensor:
        """[P, K, A]."""
        return self._tower("critic", params, features, account).squeeze(-1)

    def _tower(self, name: str, params: Mapping[str, Tensor], features: Tensor, account: Tensor) -> Tensor:
        return self._last(name, params, self._hidden(name, params, features, account))

    def _last(self, name: str, params: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        last = len(self.spec.hidden)
        return _affine(hidden, params[f"{name}_w{last}"], params[f"{name}_b{last}"])

    def _hidden(self, name: str, params: Mapping[str, Tensor], features: Tensor, account: Tensor) -> Tensor:
        """What the last hidden layer says: [P, K, A, H]."""
        p, k = features.shape[:2]
        # A flat row has no table: a product over no numbers, which leaves the bias.
        base = torch.baddbmm(params[f"{name}_b0"].unsqueeze(1), features.flatten(2), params[f"{name}_table_w"])
        own = torch.bmm(account.reshape(p, -1, self.spec.own), params[f"{name}_own_w"])  # [P, K A, H]
        x = self._sum(own.view(p * k, account.shape[2], -1), base.view(p * k, -1))
        x = x.view(*account.shape[:3], -1)
        for i in range(1, len(self.spec.hidden)):
            weight, bias = params[f"{name}_w{i}"], params[f"{name}_b{i}"]
            flat = torch.bmm(x.reshape(p, -1, x.shape[-1]), weight)  # [P, K A, H]
            x = self._sum(flat, bias).view(*x.shape[:-1], -1)
        return x

    def _sum(self, x: Tensor, base: Tensor) -> Tensor:
        """The activation of x [B, R, H] + base [B, H]."""
        return tanh_of_sum(x, base) if self.spec.activation == "tanh" else torch.relu(x + base.unsqueeze(1))


def spread_of(params: Mapping[str, Tensor], mean: Tensor) -> Tensor:
    """log_std [P, D or 1] of a policy; nothing, [P, 0], of one that chooses."""
    return params["log_std"] if "log_std" in params else mean.new_empty(mean.shape[0], 0)


def make_policy(spec: PolicySpec) -> Policy:
    """The policy a spec names."""
    if spec.kind == "equivariant":
        return EquivariantPolicy(spec)
    if spec.kind == "mlp":
        return MlpPolicy(spec)
    raise ConfigError(f"agent.policy must be equivariant or mlp, got {spec.kind!r}")

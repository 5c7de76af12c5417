"""Actors with bounded actions, for deterministic and soft actor-critics. Parameters are [P, ...]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.rl.networks.account_inputs import extras_by_asset, init_extras, split_extras
from finrl_pod.rl.networks.encoder import AssetEncoder, mean_over_assets
from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform, uniform_init
from finrl_pod.rl.networks.lookback import LookbackEncoder, make_lookback_encoder
from finrl_pod.rl.networks.observation_adapter import ModelInput, action_scale, deployed_input, row_size
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


class ActorNetwork(Protocol):
    """heads: 1 for an action, 2 for mean and log standard deviation; all before the tanh."""

    spec: PolicySpec
    heads: int

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one member."""
        ...

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> tuple[Tensor, ...]:
        """`heads` tensors [P, K, A, D]."""
        ...


class MlpActor:
    """An MLP with ReLUs on the flat observation."""

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.heads = spec, heads

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        sizes = (row_size(self.spec), *self.spec.hidden, self.heads * self.spec.action_size)
        tensors = mlp_init(sizes, generator, dtype)
        if self.spec.starts_at_base:
            last = len(self.spec.hidden)
            tensors[f"w{last}"].zero_()
            tensors[f"b{last}"].zero_()
        return tensors

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> tuple[Tensor, ...]:
        out = mlp(params, obs.flat(), len(self.spec.hidden) + 1)
        out = out.view(*obs.account.shape[:3], -1)  # [P, K, A, heads * D]
        return torch.split(out, self.spec.action_size, -1)


class EquivariantActor:
    """One network for every asset, on its features, its holding and the market's context.

        hidden_n = tanh(mixed_n + holding_n u),   head_n = w . hidden_n + v . x_n + b

    mixed_n: see `encoder.py`, computed once a group. The score of cash comes from the context only.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.heads = spec, heads
        self.encoder = AssetEncoder(spec.inputs, spec.hidden)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.inputs, self.encoder.code_size, self.encoder.mixed
        draw = uniform_init(generator, dtype)
        tensors = {
            **self.encoder.init(draw, dtype),
            **self.encoder.init_mix(draw, dtype),
            "holding_w": uniform(1, k, k, generator, dtype)[0],
            "head_w": uniform(k, self.heads, k, generator, dtype) * 0.1,
            "head_b": torch.zeros(self.heads, dtype=dtype),
            "linear_w": torch.zeros(f, self.heads, dtype=dtype),
        }
        if self.spec.starts_at_base:
            tensors["head_w"].zero_()
        if self.spec.has_cash_score:
            tensors["cash_w"] = torch.zeros(h, self.heads, dtype=dtype)
            tensors["cash_b"] = torch.zeros(self.heads, dtype=dtype)
        return {**tensors, **init_extras(self.spec, k, generator, dtype)}

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> tuple[Tensor, ...]:
        assert obs.features is not None
        p, k, n, _ = obs.features.shape
        a = obs.account.shape[2]
        relative = obs.account[..., 1 : 1 + n] * n  # [P, K, A, N], in units of an equal share
        assets = self.encoder.encode(params, obs.features, obs.tradable)
        code = self.encoder.mix(params, assets).unsqueeze(2)  # [P, K, 1, N, S]
        if self.spec.has_extras:
            code = code + extras_by_asset(self.spec, params, obs.account, n)
        hidden = torch.tanh(
            torch.addcmul(code, relative.unsqueeze(-1), params["holding_w"].view(p, 1, 1, 1, -1))
        )  # [P, K, A, N, S]
        out = affine(hidden, params["head_w"], params["head_b"])  # [P, K, A, N, heads]
        out = out + product(obs.features, params["linear_w"]).unsqueeze(2)
        if self.spec.has_cash_score:
            cash = affine(assets.context, params["cash_w"], params["cash_b"]).view(p, k, 1, 1, -1)
            out = torch.cat([cash.expand(p, k, a, 1, -1), out], 3)  # [P, K, A, 1 + N, heads]
        return out.unbind(-1)


class LinearActor:
    """Heads linear in an asset's features and its holding: head_n = w . x_n + u holding_n + b. All start at 0.

    The score of cash is linear in features averaged over the tradable assets.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.heads = spec, heads

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:  # noqa: ARG002
        shapes = {"linear_w": (self.spec.inputs, self.heads), "head_b": (self.heads,), "holding_w": (self.heads,)}
        if self.spec.has_cash_score:
            shapes |= {"cash_w": (self.spec.inputs, self.heads), "cash_b": (self.heads,)}
        if self.spec.extra_per_asset:
            shapes["extra_asset_w"] = (self.spec.extra_per_asset, self.heads)
        return {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> tuple[Tensor, ...]:
        assert obs.features is not None
        p, k, n, _ = obs.features.shape
        a = obs.account.shape[2]
        linear = affine(obs.features, params["linear_w"], params["head_b"]).unsqueeze(2)  # [P, K, 1, N, heads]
        relative = (obs.account[..., 1 : 1 + n] * n).unsqueeze(-1)  # in units of an equal share
        out = linear + relative * params["holding_w"].view(p, 1, 1, 1, -1)  # [P, K, A, N, heads]
        if self.spec.extra_per_asset:
            blocks, _ = split_extras(self.spec, obs.account, n)
            out = out + torch.einsum("pkabn,pbh->pkanh", blocks * n, params["extra_asset_w"])
        if self.spec.has_cash_score:
            pooled = mean_over_assets(obs.features, obs.tradable)  # [P, K, F]
            cash = affine(pooled, params["cash_w"], params["cash_b"]).view(p, k, 1, 1, -1)
            out = torch.cat([cash.expand(p, k, a, 1, -1), out], 3)  # [P, K, A, 1 + N, heads]
        return out.unbind(-1)


class LookbackActor:
    """An actor that reads the codes of a separate encoder beside the features."""

    def __init__(self, inner: ActorNetwork, encoder: LookbackEncoder) -> None:
        self.spec, self.heads, self.inner, self.encoder = inner.spec, inner.heads, inner, encoder

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {**self.inner.init(generator, dtype), **self.encoder.init(generator, dtype)}

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> tuple[Tensor, ...]:
        return self.inner.forward(params, obs.encoded(self.encoder, params))


def make_actor_network(spec: PolicySpec, heads: int) -> ActorNetwork:
    """The actor network of kind `spec.kind`, behind the encoder if there is one."""
    encoder = make_lookback_encoder(spec)
    inner = _make_inner(spec, heads)
    return inner if encoder is None else LookbackActor(inner, encoder)


def _make_inner(spec: PolicySpec, heads: int) -> ActorNetwork:
    if spec.kind == "linear":
        return LinearActor(spec, heads)
    return EquivariantActor(spec, heads) if spec.kind == "equivariant" else MlpActor(spec, heads)


class BoundedActor:
    """A trained actor without exploration: the tanh of its first head."""

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.network = spec, make_actor_network(spec, heads)

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """Actions [P, K, A, D] as the environment takes them."""
        obs = deployed_input(self.spec, account, features, tradable)
        return torch.tanh(self.network.forward(params, obs)[0]) * action_scale(self.spec.action)

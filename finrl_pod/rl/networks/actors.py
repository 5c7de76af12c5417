"""Actors for bounded actions: what deterministic and soft actor-critics climb with. Parameters are [P, ...]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform
from finrl_pod.rl.networks.observation_adapter import ModelInput, row_size, scale_of
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


class ActorNetwork(Protocol):
    """heads: 1 for an action, 2 for the mean and the logarithm of the standard deviation, both before the tanh."""

    spec: PolicySpec
    heads: int

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one member."""
        ...

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> tuple[Tensor, ...]:
        """`heads` tensors [P, K, A, D]."""
        ...


class MlpActor:
    """A plain network with rectifiers on the flat row."""

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.heads = spec, heads

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        sizes = (row_size(self.spec), *self.spec.hidden, self.heads * self.spec.action_size)
        return mlp_init(sizes, stream, dtype)

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> tuple[Tensor, ...]:
        out = mlp(params, seen.flat(), len(self.spec.hidden) + 1)
        out = out.view(*seen.account.shape[:3], -1)
        return torch.split(out, self.spec.action_size, -1)


class EquivariantActor:
    """One network for every asset: its features, its holding, and the market's mean over the assets.

        hidden_n = tanh(code_n + holding_n u),   head_n = w . hidden_n + v . x_n + b

    Features are encoded once a group. The score of cash comes from the market's mean alone.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.heads = spec, heads

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.features, self.spec.hidden[0], self.spec.hidden[-1]
        tensors = {
            "encode_w": uniform(f, h, f, stream, dtype),
            "encode_b": torch.zeros(h, dtype=dtype),
            "code_w": uniform(h, k, h, stream, dtype),
            "context_w": uniform(h, k, h, stream, dtype),
            "code_b": torch.zeros(k, dtype=dtype),
            "holding_w": uniform(1, k, k, stream, dtype)[0],
            "head_w": uniform(k, self.heads, k, stream, dtype) * 0.1,
            "head_b": torch.zeros(self.heads, dtype=dtype),
            "linear_w": torch.zeros(f, self.heads, dtype=dtype),
        }
        if self.spec.has_cash_score:
            tensors["cash_w"] = torch.zeros(h, self.heads, dtype=dtype)
            tensors["cash_b"] = torch.zeros(self.heads, dtype=dtype)
        return tensors

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> tuple[Tensor, ...]:
        assert seen.features is not None
        p, k, n, _ = seen.features.shape
        a = seen.account.shape[2]
        relative = seen.account[..., 1:] * n  # [P, K, A, N], in units of an equal share
        code = torch.tanh(affine(seen.features, params["encode_w"], params["encode_b"]))  # [P, K, N, H]
        context = mean_over_assets(code, seen.tradable)  # [P, K, H]
        shared = affine(context, params["context_w"], params["code_b"]).unsqueeze(2)  # [P, K, 1, S]
        code = product(code, params["code_w"]) + shared
        hidden = torch.tanh(
            torch.addcmul(code.unsqueeze(2), relative.unsqueeze(-1), params["holding_w"].view(p, 1, 1, 1, -1))
        )  # [P, K, A, N, S]
        out = affine(hidden, params["head_w"], params["head_b"])  # [P, K, A, N, heads]
        out = out + product(seen.features, params["linear_w"]).unsqueeze(2)
        if self.spec.has_cash_score:
            cash = affine(context, params["cash_w"], params["cash_b"]).view(p, k, 1, 1, -1)
            out = torch.cat([cash.expand(p, k, a, 1, -1), out], 3)
        return out.unbind(-1)


def mean_over_assets(x: Tensor, tradable: Tensor | None) -> Tensor:
    """Mean over N of [R, K, N, H], over the tradable assets alone."""
    if tradable is None:
        return x.mean(2)
    mask = tradable.unsqueeze(-1).to(x.dtype)
    return (x * mask).sum(2) / mask.sum(2).clamp(min=1)


def make_actor_network(spec: PolicySpec, heads: int) -> ActorNetwork:
    """The network that spec.kind names."""
    return EquivariantActor(spec, heads) if spec.kind == "equivariant" else MlpActor(spec, heads)


class BoundedActor:
    """Acts by the tanh of the first head, as a trained agent without exploration."""

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec, self.network = spec, make_actor_network(spec, heads)

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """[P, K, A, D] as the environment takes it."""
        return torch.tanh(self.network.forward(params, ModelInput(account, features, tradable))[0]) * scale_of(
            self.spec
        )

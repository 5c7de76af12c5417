"""Critics: the value of an action in a state, for R = members x critics networks at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from finrl_pod.rl.networks.actors import mean_over_assets
from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform
from finrl_pod.rl.networks.observation_adapter import ModelInput, row_size
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


def combined(values: Tensor, rule: str, chosen: Tensor | None = None) -> Tensor:
    """values [P, M, ...] -> [P, ...]: "min", "mean", or for "subset" the minimum over `chosen` [P, S] of the M."""
    if rule == "mean":
        return values.mean(1)
    if rule == "subset":
        assert chosen is not None
        places = chosen.view(*chosen.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
        values = values.gather(1, places)
    return values.amin(1)


def draw_subsets(streams: Sequence[torch.Generator], critics: int, size: int, device: torch.device) -> Tensor:
    """For each member, `size` different critics out of all, every subset as likely as any other: [P, size]."""
    each = [torch.randperm(critics, generator=stream, device=device)[:size] for stream in streams]
    return torch.stack(each)


class CriticNetwork(Protocol):
    """A pure function of parameters, what is seen, and what an action does."""

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one critic."""
        ...

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput, effect: Tensor) -> Tensor:
        """effect: [R, K, A, D] -> value [R, K, A]."""
        ...


def effect_size(spec: PolicySpec) -> int:
    """Numbers that a critic is told of an action: weights leave out cash."""
    return spec.assets if spec.wants_weights else spec.action_size


class MlpCritic:
    """A plain network with rectifiers on the flat row and the action's effect."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return mlp_init((row_size(self.spec) + effect_size(self.spec), *self.spec.hidden, 1), stream, dtype)

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput, effect: Tensor) -> Tensor:
        r, k, a, d = effect.shape
        x = torch.cat([seen.flat(), effect.reshape(r, k * a, d)], -1)
        return mlp(params, x, len(self.spec.hidden) + 1).view(r, k, a)


class EquivariantCritic:
    """A critic that does not know how many assets there are, nor their order.

    Encoded assets are summed with the weights that are wanted and with those that are held; beside these stand the
    market's mean, the cash wanted, the turnover sum |wanted - held| and the concentration sum wanted^2. All pass a
    hidden layer and, beside it, straight to the value: a reward that is linear in the weights is there from the start.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.features, self.spec.hidden[0], self.spec.hidden[-1]
        wide = 3 * h + SCALARS
        return {
            "encode_w": uniform(f, h, f, stream, dtype),
            "encode_b": torch.zeros(h, dtype=dtype),
            "hidden_w": uniform(wide, k, wide, stream, dtype),
            "hidden_b": torch.zeros(k, dtype=dtype),
            "value_w": uniform(k, 1, k, stream, dtype),
            "value_b": torch.zeros(1, dtype=dtype),
            "direct_w": torch.zeros(wide, 1, dtype=dtype),
            "linear_w": torch.zeros(f, 1, dtype=dtype),
        }

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput, effect: Tensor) -> Tensor:
        assert seen.features is not None
        r, k, a, n = effect.shape
        held = seen.account[..., 1:]
        code = torch.tanh(affine(seen.features, params["encode_w"], params["encode_b"]))  # [R, K, N, H]
        context = mean_over_assets(code, seen.tradable).unsqueeze(2)  # [R, K, 1, H]
        both = torch.cat([effect, held], 2).reshape(r * k, 2 * a, n)
        mixed = torch.bmm(both, code.view(r * k, n, -1)).view(r, k, 2, a, -1)
        moved = effect - held if self.spec.wants_weights else effect
        scalars = torch.stack(
            [1 - effect.sum(-1), seen.account[..., 0], moved.abs().sum(-1), effect.square().sum(-1)], -1
        )  # [R, K, A, 4]
        x = torch.cat([context.expand(r, k, a, -1), mixed[:, :, 0], mixed[:, :, 1], scalars], -1)
        hidden = torch.tanh(affine(x, params["hidden_w"], params["hidden_b"]))
        value = affine(hidden, params["value_w"], params["value_b"]) + product(x, params["direct_w"])
        each = product(seen.features, params["linear_w"]).view(r, k, 1, n)  # v . x_n
        return value.squeeze(-1) + (effect * each).sum(-1)


SCALARS = 4  # cash wanted, cash held, turnover, concentration


def make_critic(spec: PolicySpec) -> CriticNetwork:
    """The network that spec.kind names."""
    return EquivariantCritic(spec) if spec.kind == "equivariant" else MlpCritic(spec)

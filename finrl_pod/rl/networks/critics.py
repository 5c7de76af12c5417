"""Critics: the value of an action in a state, for R = members x critics networks in one batched computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.networks.account_inputs import split_extras
from finrl_pod.rl.networks.encoder import AssetEncoder, weighted_codes
from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform, uniform_init
from finrl_pod.rl.networks.lookback import LookbackEncoder, make_lookback_encoder
from finrl_pod.rl.networks.observation_adapter import ModelInput, row_size
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor

SCALARS = 4  # inputs of the equivariant critic: target cash, cash held, turnover, concentration


def combine_values(values: Tensor, rule: str, subset: Tensor | None = None) -> Tensor:
    """Ensemble values [P, M, ...] -> [P, ...]: "min", "mean", or "subset", the minimum over `subset` [P, S] of the M.

    The rule "subset" is that of REDQ (Chen et al. 2021).
    """
    if rule == "mean":
        return values.mean(1)
    if rule == "subset":
        assert subset is not None
        index = subset.view(*subset.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
        values = values.gather(1, index)
    return values.amin(1)


def draw_subsets(source: RandomSource, critics: int, size: int) -> Tensor:
    """A uniformly random subset of `size` of the critics for each member: [P, size] int64."""
    return source.permutation(critics)[:, :size]


class CriticNetwork(Protocol):
    """A pure function of parameters, the observation and the effect of an action."""

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one critic."""
        ...

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput, effect: Tensor) -> Tensor:
        """Values [R, K, A] of effects [R, K, A, D]."""
        ...


def effect_size(spec: PolicySpec) -> int:
    """Size of an action's effect, the input of a critic: target weights without cash, else the action itself."""
    return spec.assets if spec.acts_with_weights else spec.action_size


class MlpCritic:
    """An MLP with ReLUs on the flat observation and the action's effect."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return mlp_init((row_size(self.spec) + effect_size(self.spec), *self.spec.hidden, 1), generator, dtype)

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput, effect: Tensor) -> Tensor:
        r, k, a, d = effect.shape
        x = torch.cat([obs.flat(), effect.reshape(r, k * a, d)], -1)  # [R, K * A, S + D]
        return mlp(params, x, len(self.spec.hidden) + 1).view(r, k, a)


class EquivariantCritic:
    """A critic that does not depend on the number or the order of the assets.

    Inputs of the hidden layer: the encoded assets summed with the target weights and with the weights held, the
    context, target cash, cash held, the turnover sum |target - held|, the concentration sum target^2, and extras of the
    account, those per asset as sums of the encoded assets. They also enter the value linearly, so that a reward linear
    in the weights is representable from the start.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.encoder = AssetEncoder(spec.inputs, spec.hidden)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.inputs, self.encoder.code_size, self.encoder.mixed
        inputs = 3 * h + SCALARS + h * self.spec.extra_per_asset + self.spec.extra_per_account
        return {
            **self.encoder.init(uniform_init(generator, dtype), dtype),
            "hidden_w": uniform(inputs, k, inputs, generator, dtype),
            "hidden_b": torch.zeros(k, dtype=dtype),
            "value_w": uniform(k, 1, k, generator, dtype),
            "value_b": torch.zeros(1, dtype=dtype),
            "direct_w": torch.zeros(inputs, 1, dtype=dtype),
            "linear_w": torch.zeros(f, 1, dtype=dtype),
        }

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput, effect: Tensor) -> Tensor:
        assert obs.features is not None
        r, k, a, n = effect.shape
        held = obs.account[..., 1 : 1 + n]  # [R, K, A, N]
        code, context = self.encoder.encode(params, obs.features, obs.tradable)
        sums = weighted_codes(torch.cat([effect, held], 2), code).view(r, k, 2, a, -1)  # [R, K, 2, A, H]
        moved = effect - held if self.spec.acts_with_weights else effect
        scalars = torch.stack(
            [1 - effect.sum(-1), obs.account[..., 0], moved.abs().sum(-1), effect.square().sum(-1)], -1
        )  # [R, K, A, 4]
        inputs = [context.unsqueeze(2).expand(r, k, a, -1), sums[:, :, 0], sums[:, :, 1], scalars]
        if self.spec.has_extras:
            blocks, numbers = split_extras(self.spec, obs.account, n)
            inputs += [weighted_codes(block, code) for block in blocks.unbind(3)]  # each [R, K, A, H]
            inputs.append(numbers)
        x = torch.cat(inputs, -1)
        hidden = torch.tanh(affine(x, params["hidden_w"], params["hidden_b"]))  # [R, K, A, S]
        value = affine(hidden, params["value_w"], params["value_b"]) + product(x, params["direct_w"])
        linear = product(obs.features, params["linear_w"]).view(r, k, 1, n)  # v . x_n
        return value.squeeze(-1) + (effect * linear).sum(-1)


class LookbackCritic:
    """A critic that reads the codes of a separate encoder beside the features."""

    def __init__(self, inner: CriticNetwork, encoder: LookbackEncoder) -> None:
        self.inner, self.encoder = inner, encoder

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {**self.inner.init(generator, dtype), **self.encoder.init(generator, dtype)}

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput, effect: Tensor) -> Tensor:
        return self.inner.forward(params, obs.encoded(self.encoder, params), effect)


def make_critic(spec: PolicySpec) -> CriticNetwork:
    """The critic network for policies of kind `spec.kind`; a linear policy has an equivariant one."""
    encoder = make_lookback_encoder(spec)
    inner = MlpCritic(spec) if spec.kind == "mlp" else EquivariantCritic(spec)
    return inner if encoder is None else LookbackCritic(inner, encoder)

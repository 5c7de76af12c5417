"""Q-networks: values of all discrete actions at once. Parameters are [P, ...]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.rl.networks.account_inputs import extras_by_asset, init_extras, split_extras
from finrl_pod.rl.networks.encoder import AssetEncoder, weighted_codes
from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform, uniform_init
from finrl_pod.rl.networks.lookback import LookbackEncoder, make_lookback_encoder
from finrl_pod.rl.networks.observation_adapter import ModelInput, deployed_input, row_size
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


class QNetwork(Protocol):
    """A pure function of parameters and the observation."""

    spec: PolicySpec

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one member."""
        ...

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> Tensor:
        """Values [P, K, A, C] of the C actions."""
        ...


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """Action values of a dueling network (Wang et al. 2016, eq. 9): [..., C].

    value [..., 1] + advantages [..., C] - their mean over the actions.
    """
    return value + advantages - advantages.mean(-1, keepdim=True)


class MlpQ:
    """An MLP with ReLUs on the flat observation; with `dueling` its last layer gives a value and advantages."""

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.dueling = spec, dueling

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return mlp_init(
            (row_size(self.spec), *self.spec.hidden, self.spec.action_size + self.dueling), generator, dtype
        )

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> Tensor:
        out = mlp(params, obs.flat(), len(self.spec.hidden) + 1).view(*obs.account.shape[:3], -1)
        return dueling_values(out[..., :1], out[..., 1:]) if self.dueling else out


class EquivariantQ:
    """One network for every asset, which values buying and selling it; holding is valued from the whole account.

    Actions are 0: hold, 1 to N: buy asset n, N + 1 to 2 N: sell it. All are relative to a value of the state, computed
    from the market's context, the encoded assets summed with the holdings, and cash.
    """

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.dueling = spec, dueling
        self.encoder = AssetEncoder(spec.inputs, spec.hidden)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.inputs, self.encoder.code_size, self.encoder.mixed
        draw = uniform_init(generator, dtype)
        inputs = 2 * h + 1 + self.spec.extra_per_account
        return {
            **self.encoder.init(draw, dtype),
            **self.encoder.init_mix(draw, dtype),
            "holding_w": uniform(1, k, k, generator, dtype)[0],
            "cash_w": uniform(1, k, k, generator, dtype)[0],
            # Of buying and selling an asset; the name is part of saved agents.
            "moves_w": uniform(k, 2, k, generator, dtype),
            "moves_b": torch.zeros(2, dtype=dtype),
            "linear_w": torch.zeros(f, 2, dtype=dtype),
            "hidden_w": uniform(inputs, k, inputs, generator, dtype),
            "hidden_b": torch.zeros(k, dtype=dtype),
            "state_w": uniform(k, 2, k, generator, dtype),
            "state_b": torch.zeros(2, dtype=dtype),
            **init_extras(self.spec, k, generator, dtype),
        }

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> Tensor:
        assert obs.features is not None
        p, k, n, _ = obs.features.shape
        a = obs.account.shape[2]
        held, cash = obs.account[..., 1 : 1 + n], obs.account[..., :1]
        _, numbers = split_extras(self.spec, obs.account, n)
        assets = self.encoder.encode(params, obs.features, obs.tradable)
        held_codes = weighted_codes(held, assets.code)  # [P, K, A, H]
        x = torch.cat([assets.context.unsqueeze(2).expand(p, k, a, -1), held_codes, cash, numbers], -1)
        hidden = torch.tanh(affine(x, params["hidden_w"], params["hidden_b"]))
        state = affine(hidden, params["state_w"], params["state_b"])  # [P, K, A, 2]: value, advantage of holding
        code = self.encoder.mix(params, assets).unsqueeze(2)  # [P, K, 1, N, S]
        shape = (p, 1, 1, 1, -1)
        account = held.unsqueeze(-1) * n * params["holding_w"].view(shape)
        account = account + cash.unsqueeze(-1) * params["cash_w"].view(shape)  # [P, K, A, N, S]
        if self.spec.has_extras:
            account = account + extras_by_asset(self.spec, params, obs.account, n)
        trades = affine(torch.tanh(code + account), params["moves_w"], params["moves_b"])  # [P, K, A, N, 2]
        trades = trades + product(obs.features, params["linear_w"]).unsqueeze(2)
        advantages = torch.cat([state[..., 1:], trades[..., 0], trades[..., 1]], -1)  # [P, K, A, 1 + 2 N]
        return dueling_values(state[..., :1], advantages) if self.dueling else state[..., :1] + advantages


class LookbackQ:
    """A Q-network that reads the codes of a separate encoder beside the features."""

    def __init__(self, inner: QNetwork, encoder: LookbackEncoder) -> None:
        self.spec, self.inner, self.encoder = inner.spec, inner, encoder

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {**self.inner.init(generator, dtype), **self.encoder.init(generator, dtype)}

    def forward(self, params: Mapping[str, Tensor], obs: ModelInput) -> Tensor:
        return self.inner.forward(params, obs.encoded(self.encoder, params))


def make_q_network(spec: PolicySpec, *, dueling: bool) -> QNetwork:
    """The Q-network of kind `spec.kind`, behind the encoder if there is one."""
    encoder = make_lookback_encoder(spec)
    inner = EquivariantQ(spec, dueling=dueling) if spec.kind == "equivariant" else MlpQ(spec, dueling=dueling)
    return inner if encoder is None else LookbackQ(inner, encoder)


class GreedyActor:
    """A trained Q-network without exploration: the action of the highest value."""

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.network = spec, make_q_network(spec, dueling=dueling)

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """Actions [P, K, A, 1] int64."""
        return self.network.forward(params, deployed_input(self.spec, account, features, tradable)).argmax(
            -1, keepdim=True
        )

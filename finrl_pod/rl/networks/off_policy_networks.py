"""Networks of off-policy algorithms: actors with bounded actions, critics, and Q-networks. Parameters are [R, ...].

R = members x the networks that each has: all are one batched computation. Shapes: P members, K items of A accounts.
"""

from __future__ import annotations

from typing import Any

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.networks.inputs import (
    LookbackEncoder,
    ModelInput,
    action_scale,
    deployed_input,
    make_lookback_encoder,
    row_size,
)
from finrl_pod.rl.networks.layers import (
    AssetEncoder,
    Params,
    affine,
    extras_by_asset,
    init_extras,
    mean_over_assets,
    mlp,
    mlp_init,
    product,
    split_extras,
    uniform,
    uniform_init,
    weighted_codes,
)
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


class LookbackNetwork:
    """An actor, critic or Q-network that also reads the codes of its own encoder, beside the features."""

    def __init__(self, inner: Any, encoder: LookbackEncoder) -> None:
        self.inner = inner
        self.encoder = encoder

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        return {**self.inner.init(generator, dtype), **self.encoder.init(generator, dtype)}

    def forward(self, params: Params, obs: ModelInput, *effect: Tensor) -> Any:
        return self.inner.forward(params, obs.with_codes(self.encoder, params), *effect)


class MlpActor:
    """An MLP with ReLUs on the flat observation, without the numbers of critics alone.

    heads: 1 for an action, 2 for mean and log standard deviation: [P, K, A, D] each, before the tanh.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec = spec
        self.heads = heads
        self.size = row_size(spec) - spec.critic_only

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        sizes = (self.size, *self.spec.hidden, self.heads * self.spec.action_size)
        tensors = mlp_init(sizes, generator, dtype)
        if self.spec.action == "tilt":
            last = len(self.spec.hidden)
            tensors[f"w{last}"].zero_()
            tensors[f"b{last}"].zero_()
        return tensors

    def forward(self, params: Params, obs: ModelInput) -> tuple[Tensor, ...]:
        out = mlp(params, obs.flat()[..., : self.size], len(self.spec.hidden) + 1)
        out = out.view(*obs.account.shape[:3], -1)  # [P, K, A, heads * D]
        return torch.split(out, self.spec.action_size, -1)


class EquivariantActor:
    """One network for every asset, on its features, its holding and the context of the market.

        hidden_n = tanh(mixed_n + holding_n u),   head_n = w . hidden_n + v . x_n + b

    `encoder.py` defines mixed_n; it is computed once a group. The score of cash comes from the context only.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec = spec
        self.heads = heads
        self.encoder = AssetEncoder(spec.inputs, spec.hidden)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        f = self.spec.inputs
        h = self.encoder.code_size
        k = self.encoder.mixed_size
        draw = uniform_init(generator, dtype)
        tensors = {
            **self.encoder.init(draw, dtype),
            **self.encoder.init_mix(draw, dtype),
            "holding_w": uniform(1, k, k, generator, dtype)[0],
            "head_w": uniform(k, self.heads, k, generator, dtype) * 0.1,
            "head_b": torch.zeros(self.heads, dtype=dtype),
            "linear_w": torch.zeros(f, self.heads, dtype=dtype),
        }
        if self.spec.action == "tilt":
            tensors["head_w"].zero_()
        if self.spec.has_cash_score:
            tensors["cash_w"] = torch.zeros(h, self.heads, dtype=dtype)
            tensors["cash_b"] = torch.zeros(self.heads, dtype=dtype)
        return {**tensors, **init_extras(self.spec, k, generator, dtype)}

    def forward(self, params: Params, obs: ModelInput) -> tuple[Tensor, ...]:
        assert obs.features is not None
        p, k, n, _ = obs.features.shape
        a = obs.account.shape[2]
        relative = obs.account[..., 1 : 1 + n] * n  # [P, K, A, N], in units of an equal share
        assets = self.encoder.encode(params, obs.features, obs.tradable)
        code = self.encoder.mix(params, assets).unsqueeze(2)  # [P, K, 1, N, S]
        if self.spec.has_extras:
            code = code + extras_by_asset(self.spec, params, obs.account, n)
        inner = torch.addcmul(code, relative.unsqueeze(-1), params["holding_w"].view(p, 1, 1, 1, -1))
        hidden = torch.tanh(inner)  # [P, K, A, N, S]
        out = affine(hidden, params["head_w"], params["head_b"])  # [P, K, A, N, heads]
        out = out + product(obs.features, params["linear_w"]).unsqueeze(2)
        if self.spec.has_cash_score:
            cash = affine(assets.context, params["cash_w"], params["cash_b"]).view(p, k, 1, 1, -1)
            out = torch.cat([cash.expand(p, k, a, 1, -1), out], 3)  # [P, K, A, 1 + N, heads]
        return out.unbind(-1)


class LinearActor:
    """Heads linear in the features of an asset and its holding: head_n = w . x_n + u holding_n + b. All start at 0.

    The score of cash is linear in features averaged over the tradable assets.
    """

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec = spec
        self.heads = heads

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:  # noqa: ARG002
        shapes = {"linear_w": (self.spec.inputs, self.heads), "head_b": (self.heads,), "holding_w": (self.heads,)}
        if self.spec.has_cash_score:
            shapes |= {"cash_w": (self.spec.inputs, self.heads), "cash_b": (self.heads,)}
        if self.spec.extra_per_asset:
            shapes["extra_asset_w"] = (self.spec.extra_per_asset, self.heads)
        return {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}

    def forward(self, params: Params, obs: ModelInput) -> tuple[Tensor, ...]:
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
            mean_features = mean_over_assets(obs.features, obs.tradable)  # [P, K, F]
            cash = affine(mean_features, params["cash_w"], params["cash_b"]).view(p, k, 1, 1, -1)
            out = torch.cat([cash.expand(p, k, a, 1, -1), out], 3)  # [P, K, A, 1 + N, heads]
        return out.unbind(-1)


ActorNetwork = MlpActor | EquivariantActor | LinearActor | LookbackNetwork


def make_actor_network(spec: PolicySpec, heads: int) -> ActorNetwork:
    """The actor network of kind `spec.kind`, behind the encoder if there is one."""
    network: MlpActor | EquivariantActor | LinearActor
    if spec.kind == "equivariant":
        network = EquivariantActor(spec, heads)
    else:
        network = LinearActor(spec, heads) if spec.kind == "linear" else MlpActor(spec, heads)
    encoder = make_lookback_encoder(spec)
    return network if encoder is None else LookbackNetwork(network, encoder)


class BoundedActor:
    """A trained actor without exploration: the tanh of its first head."""

    def __init__(self, spec: PolicySpec, heads: int) -> None:
        self.spec = spec
        self.network = make_actor_network(spec, heads)

    def action(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Actions [P, K, A, D] as the environment takes them."""
        obs = deployed_input(self.spec, account, features, tradable)
        return torch.tanh(self.network.forward(params, obs)[0]) * action_scale(self.spec.action)


SCALARS = 4  # inputs of the equivariant critic: target cash, cash held, turnover, concentration


def combine_values(values: Tensor, rule: str, subset: Tensor | None = None) -> Tensor:
    """Ensemble values [P, M, ...] -> [P, ...]: "min", "mean", or "subset", the minimum over `subset` [P, S] of the M.

    The rule "subset" comes from REDQ (Chen et al. 2021).
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


class MlpCritic:
    """An MLP with ReLUs on the flat observation and the effect of the action: values [R, K, A]."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        spec = self.spec
        effect_size = spec.assets if spec.acts_with_weights else spec.action_size  # target weights without cash
        return mlp_init((row_size(spec) + effect_size, *spec.hidden, 1), generator, dtype)

    def forward(self, params: Params, obs: ModelInput, effect: Tensor) -> Tensor:
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

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        f = self.spec.inputs
        h = self.encoder.code_size
        k = self.encoder.mixed_size
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

    def forward(self, params: Params, obs: ModelInput, effect: Tensor) -> Tensor:
        assert obs.features is not None
        r, k, a, n = effect.shape
        holdings = obs.account[..., 1 : 1 + n]  # [R, K, A, N]
        code, context = self.encoder.encode(params, obs.features, obs.tradable)
        sums = weighted_codes(torch.cat([effect, holdings], 2), code).view(r, k, 2, a, -1)  # [R, K, 2, A, H]
        change = effect - holdings if self.spec.acts_with_weights else effect
        scalars = torch.stack(
            [1 - effect.sum(-1), obs.account[..., 0], change.abs().sum(-1), effect.square().sum(-1)], -1
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


Critic = MlpCritic | EquivariantCritic | LookbackNetwork


def make_critic(spec: PolicySpec) -> Critic:
    """The critic network for policies of kind `spec.kind`; a linear policy has an equivariant one."""
    network = MlpCritic(spec) if spec.kind == "mlp" else EquivariantCritic(spec)
    encoder = make_lookback_encoder(spec)
    return network if encoder is None else LookbackNetwork(network, encoder)


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """Action values of a dueling network (Wang et al. 2016, eq. 9): [..., C].

    value [..., 1] + advantages [..., C] - their mean over the actions.
    """
    return value + advantages - advantages.mean(-1, keepdim=True)


class MlpQ:
    """An MLP with ReLUs on the flat observation: values [P, K, A, C] of the C actions.

    With `dueling` its last layer gives a value and advantages.
    """

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec = spec
        self.dueling = dueling

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        sizes = (row_size(self.spec), *self.spec.hidden, self.spec.action_size + self.dueling)
        return mlp_init(sizes, generator, dtype)

    def forward(self, params: Params, obs: ModelInput) -> Tensor:
        out = mlp(params, obs.flat(), len(self.spec.hidden) + 1).view(*obs.account.shape[:3], -1)
        return dueling_values(out[..., :1], out[..., 1:]) if self.dueling else out


class EquivariantQ:
    """One network for every asset; it values buying and selling, while holding is valued from the whole account.

    Actions are 0: hold, 1 to N: buy asset n, N + 1 to 2 N: sell it. All are relative to a value of the state, computed
    from the context of the market, the encoded assets summed with the holdings, and cash.
    """

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec = spec
        self.dueling = dueling
        self.encoder = AssetEncoder(spec.inputs, spec.hidden)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        f = self.spec.inputs
        h = self.encoder.code_size
        k = self.encoder.mixed_size
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

    def forward(self, params: Params, obs: ModelInput) -> Tensor:
        assert obs.features is not None
        p, k, n, _ = obs.features.shape
        a = obs.account.shape[2]
        holdings = obs.account[..., 1 : 1 + n]
        cash = obs.account[..., :1]
        _, numbers = split_extras(self.spec, obs.account, n)
        assets = self.encoder.encode(params, obs.features, obs.tradable)
        held_codes = weighted_codes(holdings, assets.code)  # [P, K, A, H]
        x = torch.cat([assets.context.unsqueeze(2).expand(p, k, a, -1), held_codes, cash, numbers], -1)
        hidden = torch.tanh(affine(x, params["hidden_w"], params["hidden_b"]))
        state = affine(hidden, params["state_w"], params["state_b"])  # [P, K, A, 2]: value, advantage of holding
        code = self.encoder.mix(params, assets).unsqueeze(2)  # [P, K, 1, N, S]
        shape = (p, 1, 1, 1, -1)
        account = holdings.unsqueeze(-1) * n * params["holding_w"].view(shape)
        account = account + cash.unsqueeze(-1) * params["cash_w"].view(shape)  # [P, K, A, N, S]
        if self.spec.has_extras:
            account = account + extras_by_asset(self.spec, params, obs.account, n)
        trades = affine(torch.tanh(code + account), params["moves_w"], params["moves_b"])  # [P, K, A, N, 2]
        trades = trades + product(obs.features, params["linear_w"]).unsqueeze(2)
        advantages = torch.cat([state[..., 1:], trades[..., 0], trades[..., 1]], -1)  # [P, K, A, 1 + 2 N]
        return dueling_values(state[..., :1], advantages) if self.dueling else state[..., :1] + advantages


def make_q_network(spec: PolicySpec, *, dueling: bool) -> MlpQ | EquivariantQ | LookbackNetwork:
    """The Q-network of kind `spec.kind`, behind the encoder if there is one."""
    network = (EquivariantQ if spec.kind == "equivariant" else MlpQ)(spec, dueling=dueling)
    encoder = make_lookback_encoder(spec)
    return network if encoder is None else LookbackNetwork(network, encoder)


class GreedyActor:
    """A trained Q-network without exploration: the action of the highest value."""

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec = spec
        self.network = make_q_network(spec, dueling=dueling)

    def action(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Actions [P, K, A, 1] int64."""
        obs = deployed_input(self.spec, account, features, tradable)
        return self.network.forward(params, obs).argmax(-1, keepdim=True)

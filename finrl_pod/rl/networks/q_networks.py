"""Values of all discrete actions at once. Parameters are [P, ...]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.rl.networks.actors import mean_over_assets
from finrl_pod.rl.networks.layers import affine, mlp, mlp_init, product, uniform
from finrl_pod.rl.networks.observation_adapter import ModelInput, row_size
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor


class QNetwork(Protocol):
    """A pure function of parameters and what is seen."""

    spec: PolicySpec

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial tensors of one member."""
        ...

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> Tensor:
        """[P, K, A, C] values of C choices."""
        ...


def duel(value: Tensor, advantages: Tensor) -> Tensor:
    """Wang et al. 2016, eq. 9: value [..., 1] + advantages [..., C] - their mean over the choices."""
    return value + advantages - advantages.mean(-1, keepdim=True)


class MlpQ:
    """A plain network with rectifiers on the flat row; dueling: the last layer gives a value beside the advantages."""

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.dueling = spec, dueling

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return mlp_init((row_size(self.spec), *self.spec.hidden, self.spec.action_size + self.dueling), stream, dtype)

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> Tensor:
        out = mlp(params, seen.flat(), len(self.spec.hidden) + 1).view(*seen.account.shape[:3], -1)
        return duel(out[..., :1], out[..., 1:]) if self.dueling else out


class EquivariantQ:
    """One network for every asset, which values buying it and selling it; holding on is valued from the whole account.

    The choices are 0: hold on, 1 to N: buy asset n, N + 1 to 2 N: sell it. All stand on a value of the state, from the
    market's mean and the assets as weighted by the holdings.
    """

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.dueling = spec, dueling

    def init(self, stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        f, h, k = self.spec.features, self.spec.hidden[0], self.spec.hidden[-1]
        return {
            "encode_w": uniform(f, h, f, stream, dtype),
            "encode_b": torch.zeros(h, dtype=dtype),
            "code_w": uniform(h, k, h, stream, dtype),
            "context_w": uniform(h, k, h, stream, dtype),
            "code_b": torch.zeros(k, dtype=dtype),
            "holding_w": uniform(1, k, k, stream, dtype)[0],
            "cash_w": uniform(1, k, k, stream, dtype)[0],
            "moves_w": uniform(k, 2, k, stream, dtype),
            "moves_b": torch.zeros(2, dtype=dtype),
            "linear_w": torch.zeros(f, 2, dtype=dtype),
            "hidden_w": uniform(2 * h + 1, k, 2 * h + 1, stream, dtype),
            "hidden_b": torch.zeros(k, dtype=dtype),
            "state_w": uniform(k, 2, k, stream, dtype),
            "state_b": torch.zeros(2, dtype=dtype),
        }

    def forward(self, params: Mapping[str, Tensor], seen: ModelInput) -> Tensor:
        assert seen.features is not None
        p, k, n, _ = seen.features.shape
        a = seen.account.shape[2]
        held, cash = seen.account[..., 1:], seen.account[..., :1]
        code = torch.tanh(affine(seen.features, params["encode_w"], params["encode_b"]))  # [P, K, N, H]
        context = mean_over_assets(code, seen.tradable)  # [P, K, H]
        mixed = torch.bmm(held.reshape(p * k, a, n), code.view(p * k, n, -1)).view(p, k, a, -1)
        x = torch.cat([context.unsqueeze(2).expand(p, k, a, -1), mixed, cash], -1)
        hidden = torch.tanh(affine(x, params["hidden_w"], params["hidden_b"]))
        state = affine(hidden, params["state_w"], params["state_b"])  # [P, K, A, 2]: value, and what holding on adds
        shared = affine(context, params["context_w"], params["code_b"]).unsqueeze(2)
        each = (product(code, params["code_w"]) + shared).unsqueeze(2)  # [P, K, 1, N, S]
        wide = (p, 1, 1, 1, -1)
        own = held.unsqueeze(-1) * n * params["holding_w"].view(wide) + cash.unsqueeze(-1) * params["cash_w"].view(wide)
        moves = affine(torch.tanh(each + own), params["moves_w"], params["moves_b"])  # [P, K, A, N, 2]
        moves = moves + product(seen.features, params["linear_w"]).unsqueeze(2)
        advantages = torch.cat([state[..., 1:], moves[..., 0], moves[..., 1]], -1)  # [P, K, A, 1 + 2 N]
        return duel(state[..., :1], advantages) if self.dueling else state[..., :1] + advantages


def make_q_network(spec: PolicySpec, *, dueling: bool) -> QNetwork:
    """The network that spec.kind names."""
    return EquivariantQ(spec, dueling=dueling) if spec.kind == "equivariant" else MlpQ(spec, dueling=dueling)


class GreedyActor:
    """Acts by the choice of the highest value, as a trained agent without exploration."""

    def __init__(self, spec: PolicySpec, *, dueling: bool) -> None:
        self.spec, self.network = spec, make_q_network(spec, dueling=dueling)

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """[P, K, A, 1] int64."""
        return self.network.forward(params, ModelInput(account, features, tradable)).argmax(-1, keepdim=True)

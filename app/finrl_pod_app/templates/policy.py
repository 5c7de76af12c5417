"""The policy MyPolicy: a score for each asset from one hidden layer, the same for all assets.

Use it in a config, [agent] policy = "FILE.py:MyPolicy"; check it with finrl-pod check FILE.py:MyPolicy.
"""

# ruff: noqa: ARG002 (arguments of the interface)

from collections.abc import Mapping

import torch
from torch import Tensor

from finrl_pod.rl.networks.policies import BasePolicy


class MyPolicy(BasePolicy):
    """Scores of assets from their features; cash, where it has a score, gets the mean of the others."""

    def weights(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Tensors of one member by name."""
        inputs = self.spec.inputs
        units = self.spec.hidden[0]
        first = torch.randn(2, inputs, units, generator=generator) / inputs**0.5
        last = 0.01 * torch.randn(units, generator=generator)
        return {"actor_w": first[0], "score_w": last, "critic_w": first[1], "value_w": last.clone()}

    def mean(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Scores [P, K, A, D] of features [P, K, N, F], equal for the A accounts account [P, K, A, 1 + N] of a bar."""
        hidden = torch.tanh(torch.einsum("pknf,pfh->pknh", features, params["actor_w"]))
        scores = torch.einsum("pknh,ph->pkn", hidden, params["score_w"])
        if self.spec.has_cash_score:
            scores = torch.cat([scores.mean(-1, keepdim=True), scores], -1)
        return scores.unsqueeze(2).expand(*account.shape[:3], -1)

    def value(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Values [P, K, A]."""
        hidden = torch.tanh(torch.einsum("pknf,pfh->pknh", features, params["critic_w"])).mean(2)
        return torch.einsum("pkh,ph->pk", hidden, params["value_w"]).unsqueeze(2).expand(account.shape[:3])

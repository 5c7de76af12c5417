"""Policies of PPO on GPUs: acting, and a gradient step with a backward pass written out.

A test compares the gradient with the autograd path. Written out, a minibatch takes a quarter of the
launches, nothing of size [.., A, N, S] is kept, and every launch has fixed shapes, so that it can be captured. Matrix
products are computed by torch, all else is in `device_operations.py`. Memory is the limit of the number of accounts:
activations and gradients are overwritten in place, and the critic is finished before the actor begins.

Shapes: P members, K items (a bar and its A accounts), R rows of the market table, N assets of F features, H and S
units, D scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from finrl_pod.rl.fused import device_operations as ops
from finrl_pod.rl.networks.distributions import GAUSSIAN, valid_scores
from finrl_pod.rl.networks.layers import affine, mean_over_assets, product, select_items, weighted_codes
from finrl_pod.rl.networks.policies import EquivariantPolicy, MlpPolicy, Policy
from finrl_pod.rl.optimisation.optimiser import Adam, Parameters
from finrl_pod.types import Tensor

TABLE_REPEATS = 2  # with so many items a row of the market table, the table is encoded instead of every item


class Rows(NamedTuple):
    """Rows of the market table that a batch needs: features [P, R, N, F] and the mask [P, R, N] or None.

    of_item: [P, K], the row of each item; None where R = K: row k belongs to item k. items: the items of each row, for
    gradients.
    """

    features: Tensor
    tradable: Tensor | None
    of_item: Tensor | None
    items: ops.ItemsOfRows | None = None

    def with_items(self) -> Rows:
        """Rows for a gradient."""
        if self.of_item is None:
            return self
        return self._replace(items=ops.ItemsOfRows.of(self.of_item, self.features.shape[1]))


def make_device_policy(
    policy: Policy,
    parameters: Parameters,
    features: Tensor,
    tradable: Tensor | None,
    activation_dtype: torch.dtype | None = None,
) -> DevicePolicy | None:
    """The program of a policy on a GPU, or None if autograd has to be used; arguments as for `make_policy_kernel`.

    activation_dtype: dtype of features, accounts, activations and their gradients; by default the parameter dtype.
    """
    spec = policy.spec
    if not spec.assets or features.dtype != parameters.flat.dtype:
        return None
    if type(policy) is MlpPolicy:
        return _MlpDevicePolicy(policy, parameters, features, tradable, activation_dtype)
    # Equivariant policies under a mandate alone: scores of assets without inertia.
    if type(policy) is EquivariantPolicy and spec.action == "tilt" and not spec.has_extras and not spec.has_cash_score:
        return _EquivariantDevicePolicy(policy, parameters, features, tradable, activation_dtype)
    return None


class DevicePolicy(ABC):
    """Forward pass, sampling and gradient step of PPO for P members that share a market table; as `PolicyKernel`."""

    def __init__(
        self,
        policy: Any,
        parameters: Parameters,
        features: Tensor,
        tradable: Tensor | None,
        activation_dtype: torch.dtype | None = None,
    ) -> None:
        self.spec = policy.spec
        self._parameters = parameters
        self.dtype = activation_dtype or parameters.flat.dtype
        self._features = features.to(self.dtype)
        self._tradable = tradable
        self._flat = parameters.flat.to(self.dtype)  # a copy if the dtype is another
        self._weights = parameters.views_of(self._flat)
        self._log_std = parameters.views_of(parameters.flat)["log_std"]
        self._gradient = torch.zeros_like(self._flat)
        self._slopes = parameters.views_of(self._gradient)

    @staticmethod
    def pack(data: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Items as `update` takes them: bar, account and action, and the other numbers as [P, I, A, 3]."""
        bar, account, action, *numbers = data
        return bar, account, action, torch.stack(numbers, -1)

    @torch.no_grad()
    def update(
        self,
        data: Sequence[Tensor],
        indices: Tensor,
        settings: Mapping[str, Tensor],
        optimiser: Adam,
        active: Tensor,
        alive: Tensor,
    ) -> Tensor:
        """One minibatch of PPO, in place; arguments and result as of `PolicyKernel.update`, `data` as of `pack`."""
        self._refresh()
        bar, account, numbers = (select_items(data[i], indices) for i in (0, 1, 3))
        numbers = numbers.view(len(indices), -1, numbers.shape[-1])
        rows = self._rows(bar).with_items()
        value_losses = self._value_gradient(rows, account, numbers, settings["value_coefficient"])
        action = select_items(data[2], indices)
        coefficients = (settings["clip_range"], settings["entropy_coefficient"])
        sums = self._score_gradient(rows, bar, account, action, numbers, coefficients)
        limits = (settings["learning_rate"], settings["max_grad_norm"], settings["target_kl"])
        flat = self._parameters.flat
        state = (flat, optimiser.first, optimiser.second, optimiser.steps)
        gradient = self._gradient.to(flat.dtype)
        return ops.adam_clipped(state, gradient, sums, value_losses, limits, active, alive, optimiser.constants)

    def _value_gradient(self, rows: Rows, account: Tensor, numbers: Tensor, coefficient: Tensor) -> Tensor:
        """Write the gradient of the critic; returns its losses [P]. numbers: [P, R, 3]."""
        value, activations = self._values(rows, account)
        value = value.to(self._log_std.dtype)
        losses = ops.value_loss(value.view(len(value), -1), numbers, coefficient)
        self._values_backward(value.to(self.dtype), rows, account, activations)
        return losses

    def _score_gradient(
        self, rows: Rows, bar: Tensor, account: Tensor, action: Tensor, numbers: Tensor,
        coefficients: tuple[Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        """Write the gradient of the actor; returns the sums of `ppo_loss`. coefficients: clip range, of entropy."""
        mean, activations = self._scores(rows, account)
        mean = mean.to(self._log_std.dtype)
        (p, *_, size) = mean.shape
        valid = None if self._tradable is None else valid_scores(self._tradable[bar], self.spec.action_size)
        valid = None if valid is None else valid.squeeze(2).contiguous()
        sums = ops.ppo_loss(
            mean.view(p, -1, size), self._log_std, action.view(p, -1, size), numbers, valid, *coefficients
        )
        of_spread = sums[:, ops.SUMS :]
        slope = self._slopes["log_std"]
        slope.copy_(of_spread.sum(1, keepdim=True) if slope.shape[1] == 1 else of_spread)
        self._scores_backward(mean.to(self.dtype), rows, account, activations)
        return sums

    @torch.no_grad()
    def mean(self, bar: Tensor, account: Tensor) -> Tensor:
        """Mean scores [P, K, A, D] for bars [P, K] and accounts [P, K, A, own]."""
        self._refresh()
        return self._scores(self._rows(bar), account.to(self.dtype))[0].to(self._log_std.dtype)

    @torch.no_grad()
    def value(self, bar: Tensor, account: Tensor) -> Tensor:
        """Values [P, K, A] for bars [P, K] and accounts [P, K, A, own]."""
        self._refresh()
        return self._values(self._rows(bar), account.to(self.dtype))[0].to(self._log_std.dtype)

    def sample(self, bar: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] made with standard normal noise of that shape, and their log-probability [P, K, A]."""
        mean = self.mean(bar, account)
        log_std = self._log_std
        action = GAUSSIAN.sample(mean, log_std, noise)
        valid = None if self._tradable is None else valid_scores(self._tradable[bar], self.spec.action_size)
        return action, GAUSSIAN.log_probability(action, mean, log_std, valid)

    def _refresh(self) -> None:
        """Round the weights again: they were changed since."""
        if self._flat is not self._parameters.flat:
            self._flat.copy_(self._parameters.flat)

    def _rows(self, bar: Tensor) -> Rows:
        """A row for each of the bars [P, K]."""
        flat = bar.reshape(-1)
        features = self._features.index_select(0, flat).view(*bar.shape, *self._features.shape[1:])
        return Rows(features, None if self._tradable is None else self._tradable[bar], None)

    @abstractmethod
    def _scores(self, rows: Rows, account: Tensor) -> tuple[Tensor, Any]:
        """Mean scores [P, K, A, D], and what `_scores_backward` needs."""

    @abstractmethod
    def _values(self, rows: Rows, account: Tensor) -> tuple[Tensor, Any]:
        """Values [P, K, A], and what `_values_backward` needs."""

    @abstractmethod
    def _scores_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: Any) -> None:
        """Write the gradient of the actor without log_std. grad: [P, K, A, D]."""

    @abstractmethod
    def _values_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: Any) -> None:
        """Write the gradient of the critic. grad: [P, K, A]."""

    def _weight_slope(self, name: str, x: Tensor, grad: Tensor) -> None:
        """Gradient of a weight [P, I, O] from inputs [P, .., I] and the gradient of the outputs [P, .., O]."""
        slope = self._slopes[name]
        p = x.shape[0]
        out = slope.view(p, -1, slope.shape[-1]) if slope.dim() == 3 else slope.unsqueeze(-1)
        torch.bmm(x.reshape(p, -1, x.shape[-1]).transpose(1, 2), grad.reshape(p, -1, grad.shape[-1]), out=out)

    def _bias_slope(self, name: str, grad: Tensor) -> None:
        """Gradient of a bias [P, O] from the gradient of the outputs [P, .., O]."""
        torch.sum(grad.reshape(grad.shape[0], -1, grad.shape[-1]), 1, out=self._slopes[name])


class _MlpDevicePolicy(DevicePolicy):
    # The mask is not needed: features of assets that are not tradable are 0.

    def _scores(self, rows: Rows, account: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self._tower("actor", rows.features, account)

    def _values(self, rows: Rows, account: Tensor) -> tuple[Tensor, list[Tensor]]:
        out, hidden = self._tower("critic", rows.features, account)
        return out.squeeze(-1), hidden

    def _tower(self, name: str, features: Tensor, account: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs [P, K, A, O] of a tower, and its hidden units [P, K A, H] layer by layer."""
        weights = self._weights
        (p, k, accounts, own) = account.shape
        base = torch.baddbmm(weights[f"{name}_b0"].unsqueeze(1), features.flatten(2), weights[f"{name}_table_w"])
        x = torch.bmm(account.reshape(p, -1, own), weights[f"{name}_own_w"])
        x = ops.tanh_of_sum(x.view(p * k, accounts, -1), base.view(p * k, -1)).view(p, k * accounts, -1)
        hidden, last = [x], len(self.spec.hidden)
        for i in range(1, last):
            x = ops.tanh_of_sum(torch.bmm(x, weights[f"{name}_w{i}"]), weights[f"{name}_b{i}"])
            hidden.append(x)
        return affine(x, weights[f"{name}_w{last}"], weights[f"{name}_b{last}"]).view(p, k, accounts, -1), hidden

    def _scores_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: list[Tensor]) -> None:
        self._tower_backward("actor", grad, rows.features, account, activations)

    def _values_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: list[Tensor]) -> None:
        self._tower_backward("critic", grad.unsqueeze(-1), rows.features, account, activations)

    def _tower_backward(self, name: str, grad: Tensor, features: Tensor, account: Tensor, hidden: list[Tensor]) -> None:
        """Write the gradient of a tower. hidden: emptied, so that the memory of a layer is free for the next."""
        p, k, accounts, _ = account.shape
        grad = grad.reshape(p, k * accounts, -1)
        for i in range(len(hidden), 0, -1):
            below = hidden.pop()
            self._weight_slope(f"{name}_w{i}", below, grad)
            self._bias_slope(f"{name}_b{i}", grad)
            grad = torch.bmm(grad, self._weights[f"{name}_w{i}"].transpose(1, 2))
            grad = ops.tanh_backward(grad, below)
        self._weight_slope(f"{name}_own_w", account, grad)
        base = grad.view(p, k, accounts, -1).sum(2)  # the part of the table is shared by the accounts of an item
        self._weight_slope(f"{name}_table_w", features.flatten(2), base)
        self._bias_slope(f"{name}_b0", base)


class _ScoreActivations(NamedTuple):
    """codes: [P, R, N, H] of every layer; context: [P, R, H]; mixed_code: [P, R, N, S]; context_code: [P, R, S]."""

    codes: list[Tensor]
    context: Tensor
    mixed_code: Tensor
    context_code: Tensor


class _ValueActivations(NamedTuple):
    """codes: [P, R, N, H] of every layer; context: [P, R, H]; held_codes: [P, K, A, H]; hidden: [P, K A, S]."""

    codes: list[Tensor]
    context: Tensor
    held_codes: Tensor
    hidden: Tensor


class _EquivariantDevicePolicy(DevicePolicy):
    """Encodes R rows: the rows of the K items, or the whole market table where many items share its rows."""

    def _rows(self, bar: Tensor) -> Rows:
        table = self._features
        if bar.shape[1] < TABLE_REPEATS * len(table):
            return super()._rows(bar)
        mask = None if self._tradable is None else self._tradable.expand(len(bar), -1, -1)
        return Rows(table.expand(len(bar), -1, -1, -1), mask, bar)

    def _encode(self, prefix: str, features: Tensor, tradable: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Codes [P, R, N, H] of every layer, and the mean of the last one over assets [P, R, H]."""
        p, k, n, _ = features.shape
        layers = len(self.spec.hidden) - 1 or 1
        codes = []
        x = features
        for i in range(layers):
            weight, bias = (self._weights[_layer(prefix, kind, i)] for kind in "wb")
            rows = torch.bmm(x.reshape(p, k * n, -1), weight)
            x = ops.tanh_of_sum(rows, bias).view(p, k, n, -1)
            codes.append(x)
        return codes, mean_over_assets(x, tradable)

    def _scores(self, rows: Rows, account: Tensor) -> tuple[Tensor, _ScoreActivations]:
        weights = self._weights
        (p, r, n, _) = rows.features.shape
        codes, context = self._encode("", rows.features, rows.tradable)
        context_code = affine(context, weights["context_w"], weights["code_b"])  # [P, R, S]
        mixed_code = product(codes[-1], weights["code_w"])  # [P, R, N, S]
        linear = torch.bmm(rows.features.reshape(p, r * n, -1), weights["linear_w"].unsqueeze(-1)).view(p, r, n)
        of_item = rows.of_item
        scores = ops.asset_scores(
            mixed_code, context_code, account, linear, weights["holding_w"], weights["score_w"], of_item
        )
        return scores, _ScoreActivations(codes, context, mixed_code, context_code)

    def _values(self, rows: Rows, account: Tensor) -> tuple[Tensor, _ValueActivations]:
        weights = self._weights
        (p, k, accounts, _) = account.shape
        n = rows.features.shape[2]
        codes, context = self._encode("value_", rows.features, rows.tradable)
        context_code = affine(context, weights["value_context_w"], weights["value_b"])  # [P, R, S]
        if rows.of_item is None:
            held_codes = weighted_codes(account[..., 1 : 1 + n], codes[-1])  # [P, K, A, H]
        else:
            held_codes = ops.held_codes(account, codes[-1], rows.of_item)
            context_code = select_items(context_code, rows.of_item)  # [P, K, S]
        mixed_code = product(held_codes, weights["value_holding_w"])
        hidden = ops.tanh_of_sum(mixed_code.view(p * k, accounts, -1), context_code.view(p * k, -1)).view(
            p, k * accounts, -1
        )
        value = affine(hidden, weights["value_w"].unsqueeze(-1), weights["value_out_b"])
        return value.view(p, k, accounts), _ValueActivations(codes, context, held_codes, hidden)

    def _scores_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: _ScoreActivations) -> None:
        codes, context, mixed_code, context_code = activations
        weights = self._weights
        (p, r, n, size) = mixed_code.shape
        grad_mixed, of_linear, of_holding, of_score = ops.asset_scores_backward(
            grad, mixed_code, context_code, account, weights["holding_w"], weights["score_w"], rows.of_item, rows.items
        )
        self._bias_slope("holding_w", of_holding)
        self._bias_slope("score_w", of_score)
        self._weight_slope("linear_w", rows.features, of_linear.unsqueeze(-1))
        self._weight_slope("code_w", codes[-1], grad_mixed)
        grad_shared = grad_mixed.sum(2)  # [P, R, S]
        self._weight_slope("context_w", context, grad_shared)
        self._bias_slope("code_b", grad_shared)
        of_context = torch.bmm(grad_shared, weights["context_w"].transpose(1, 2))
        of_code = torch.bmm(grad_mixed.view(p, r * n, size), weights["code_w"].transpose(1, 2))
        self._encode_backward("", of_code, of_context, rows, codes)

    def _values_backward(self, grad: Tensor, rows: Rows, account: Tensor, activations: _ValueActivations) -> None:
        codes, context, held_codes, hidden = activations
        weights = self._weights
        (p, r, n, size) = codes[-1].shape
        (k, accounts) = account.shape[1:3]
        grad = grad.reshape(p, k * accounts, 1)
        self._weight_slope("value_w", hidden, grad)
        self._bias_slope("value_out_b", grad)
        grad = ops.tanh_backward(torch.bmm(grad, weights["value_w"].unsqueeze(1)), hidden)  # [P, K A, S]
        self._weight_slope("value_holding_w", held_codes, grad)
        of_held = torch.bmm(grad, weights["value_holding_w"].transpose(1, 2)).view(p * k, accounts, size)
        of_shared = grad.view(p, k, accounts, -1).sum(2)
        if rows.of_item is not None and rows.items is not None:
            of_shared = ops.sum_over_rows(of_shared, rows.of_item, rows.items)
        self._weight_slope("value_context_w", context, of_shared)
        self._bias_slope("value_b", of_shared)
        of_context = torch.bmm(of_shared, weights["value_context_w"].transpose(1, 2))
        if rows.of_item is not None and rows.items is not None:
            of_held = of_held.view(p, k, accounts, size)
            of_code = ops.held_codes_backward(of_held, account, codes[-1], rows.of_item, rows.items).view(
                p, r * n, size
            )
        else:
            holdings = account[..., 1 : 1 + n].reshape(p * k, accounts, n)
            of_code = torch.bmm(holdings.transpose(1, 2), of_held).view(p, r * n, size)
        self._encode_backward("value_", of_code, of_context, rows, codes)

    def _encode_backward(self, prefix: str, grad: Tensor, of_context: Tensor, rows: Rows, codes: list[Tensor]) -> None:
        """Gradients of the layers of `_encode` from the gradients of codes [P, R N, H] and their mean [P, R, H]."""
        features, tradable, (p, r, n, _) = rows.features, rows.tradable, rows.features.shape
        weight = None
        if tradable is not None:
            mask = tradable.to(grad.dtype)
            weight = (mask / mask.sum(2, keepdim=True).clamp(min=1)).reshape(p * r, n)
        context_grad: Tensor | None = of_context.view(p * r, -1)
        for i in range(len(codes) - 1, -1, -1):
            grad = ops.tanh_backward(grad.view(p * r, n, -1), codes[i].view(p * r, n, -1), context_grad, weight)
            grad = grad.view(p, r * n, -1)
            context_grad = weight = None
            below = codes[i - 1] if i else features
            self._weight_slope(_layer(prefix, "w", i), below, grad)
            self._bias_slope(_layer(prefix, "b", i), grad)
            if i:
                grad = torch.bmm(grad, self._weights[_layer(prefix, "w", i)].transpose(1, 2))


def _layer(prefix: str, kind: str, i: int) -> str:
    """Name of a layer tensor in an `AssetEncoder`."""
    return f"{prefix}encode_{kind}{i or ''}"

"""PPO with an MLP or equivariant policy, in float32 on the CPU: glue for `mlp_policy.cpp` and `equivariant_policy.cpp`.

The kernels compute what PPO computes through autograd; a test compares the two. On two cores they take a third of the
time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from finrl_pod.native.device import on_device
from finrl_pod.native.library import argument_struct, load
from finrl_pod.rl.networks.policies import EquivariantPolicy, MlpPolicy, Policy, PolicySpec
from finrl_pod.rl.optimisation.optimiser import Adam, Parameters
from finrl_pod.types import Tensor

MLP, EQUIVARIANT = (Path(__file__).with_name(f"{name}_policy.cpp") for name in ("mlp", "equivariant"))
TOWERS = ACTOR, CRITIC = range(2)  # `enum Tower` of the kernel
MAX_LAYERS = 9  # as in the kernel of the MLP
LANES = 8  # the equivariant kernel takes hidden widths that are a multiple of it
METRICS = 5  # KL, clipped fraction, policy loss, value loss, gradient norm


def make_policy_kernel(
    policy: Policy, parameters: Parameters, features: Tensor, tradable: Tensor | None
) -> PolicyKernel | None:
    """The kernel for a policy, or None if autograd has to be used: no kernel fits, or there is no compiler.

    features: [T, N, F] float32 on the CPU, else None is returned; tradable: [T, N] bool, or None if all always are.
    """
    if any(on_device(x.device) or x.dtype != torch.float32 for x in (parameters.flat, features)):
        return None
    spec = policy.spec
    if type(policy) is MlpPolicy and len(spec.hidden) < MAX_LAYERS:
        source, describe = MLP, _mlp_batch
    elif (
        isinstance(policy, EquivariantPolicy)
        and len(spec.hidden) <= 2
        and not any(width % LANES for width in spec.hidden)
        and not spec.has_extras
    ):
        source, describe = EQUIVARIANT, _equivariant_batch
    else:
        return None
    library = load(source)
    if library is None:
        return None
    return PolicyKernel(library, source, describe(spec, parameters), spec, parameters, features, tradable)


def _mlp_batch(spec: PolicySpec, parameters: Parameters) -> Any:
    """The struct `MlpBatch` of a policy, without its data."""
    starts = parameters.starts
    batch = argument_struct(MLP, "MlpBatch")()
    batch.layers = len(spec.hidden) + 1
    batch.width[: batch.layers] = (*spec.hidden, spec.action_size)
    for t, tower in zip(TOWERS, ("actor", "critic"), strict=True):
        batch.table_at[t] = starts[f"{tower}_table_w"]
        for i in range(batch.layers):
            batch.weight_at[t][i] = starts[f"{tower}_w{i}" if i else f"{tower}_own_w"]
            batch.bias_at[t][i] = starts[f"{tower}_b{i}"]
    return batch


def _equivariant_batch(spec: PolicySpec, parameters: Parameters) -> Any:
    """The struct `EquivariantBatch` of a policy, without its data."""
    batch = argument_struct(EQUIVARIANT, "EquivariantBatch")()
    batch.inputs = spec.features
    batch.hidden = spec.hidden[0]
    batch.size = spec.hidden[-1]
    batch.softmax = spec.action == "softmax"
    for name in parameters.starts.keys() & {field for field, *_ in batch._fields_}:
        setattr(batch, name, parameters.starts[name])
    return batch


class PolicyKernel:
    """Forward pass, sampling and the gradient step of PPO for P members that share a market table.

    K items (a bar and its A accounts) per member; account: [P, K, A, 1 + N]; D: actions per account.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        source: Path,
        batch: Any,
        spec: PolicySpec,
        parameters: Parameters,
        features: Tensor,
        tradable: Tensor | None,
    ) -> None:
        """batch: argument of the library for a policy of this kind. features: [T, N, F]; tradable: [T, N] or None."""
        pointer = ctypes.c_void_p
        self._step = library.policy_step
        self._forward = library.policy_forward
        self._sample = library.policy_sample
        self._step.restype = self._forward.restype = self._sample.restype = None
        self._step.argtypes = [pointer] * 2
        self._forward.argtypes = [pointer, ctypes.c_int64, pointer]
        self._sample.argtypes = [pointer] * 4
        self._adam_state = argument_struct(source, "AdamState")
        self._flat = parameters.flat
        self._tables = (features.contiguous(), None if tradable is None else tradable.contiguous())
        batch.members, batch.parameters = self._flat.shape
        batch.table = features[0].numel()
        batch.assets = spec.assets
        batch.has_cash = spec.has_cash_score
        batch.own = spec.own
        batch.actions = spec.action_size
        batch.log_std_size = parameters.shapes["log_std"][0]
        batch.log_std_at = parameters.starts["log_std"]
        batch.flat = self._flat.data_ptr()
        batch.features, batch.tradable = (None if x is None else x.data_ptr() for x in self._tables)
        self._batch = batch
        self._batch_address = ctypes.addressof(batch)

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
        """One minibatch of PPO, in place; returns KL, clipped fraction, policy and value loss, gradient norm: [5, P].

        data: bar [P, I], account [P, I, A, 1 + N], action [P, I, A, D], then the old log-probability, the advantage
        (normalised here) and the value target, each [P, I, A]; indices: the items of the minibatch [P, M] int64;
        settings: settings of PPO by name, [P] each; active: [P] bool, members that take part. Changes the parameters,
        the moments of `optimiser`, and `alive` [P] bool: False for members whose loss or gradient is not finite.
        """
        data = [x.contiguous() for x in data]
        indices = indices.contiguous()
        coefficients = [
            settings[name].contiguous() for name in ("clip_range", "value_coefficient", "entropy_coefficient")
        ]
        limits = [settings[name].contiguous() for name in ("learning_rate", "max_grad_norm", "target_kl")]
        batch = self._batch
        members = self._flat.shape[0]
        _, batch.total, batch.accounts = data[-1].shape
        batch.items = indices.shape[1]
        batch.indices = indices.data_ptr()
        batch.bar, batch.account, batch.action, batch.old_log_prob, batch.advantage, batch.target = (
            x.data_ptr() for x in data
        )
        batch.clip_range, batch.value_coefficient, batch.entropy_coefficient = (x.data_ptr() for x in coefficients)
        metrics = torch.empty(METRICS, members)
        moments = (optimiser.first, optimiser.second, optimiser.steps)
        pointers = [x.data_ptr() for x in (self._flat, *moments, *limits, active, alive, metrics)]
        self._step(self._batch_address, ctypes.byref(self._adam_state(*pointers, *optimiser.constants)))
        return metrics

    def mean(self, bar: Tensor, account: Tensor) -> Tensor:
        """Mean scores [P, K, A, D] for bars [P, K] and accounts [P, K, A, 1 + N]."""
        return self._tower_output(ACTOR, bar, account, self._batch.actions)

    def value(self, bar: Tensor, account: Tensor) -> Tensor:
        """Values [P, K, A] for bars [P, K] and accounts [P, K, A, 1 + N]."""
        return self._tower_output(CRITIC, bar, account, 1).squeeze(-1)

    def sample(self, bar: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] made with standard normal noise of that shape, and their log-probability [P, K, A]."""
        inputs = self._set_inputs(bar, account)  # noqa: F841  kept until the kernel has run
        noise = noise.contiguous()
        action = torch.empty_like(noise)
        log_prob = torch.empty(noise.shape[:-1])
        self._sample(self._batch_address, noise.data_ptr(), action.data_ptr(), log_prob.data_ptr())
        return action, log_prob

    def _tower_output(self, tower: int, bar: Tensor, account: Tensor, size: int) -> Tensor:
        inputs = self._set_inputs(bar, account)  # noqa: F841  kept until the kernel has run
        out = torch.empty(*account.shape[:-1], size)
        self._forward(self._batch_address, tower, out.data_ptr())
        return out

    def _set_inputs(self, bar: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """Point the kernel at these states; the returned tensors must be kept until it has run."""
        batch = self._batch
        bar = bar.contiguous()
        account = account.contiguous()
        _, batch.items, batch.accounts, _ = account.shape
        batch.total = batch.items
        batch.indices = None
        batch.bar = bar.data_ptr()
        batch.account = account.data_ptr()
        return bar, account

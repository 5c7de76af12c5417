"""The gradient of PPO's loss for an `MlpPolicy` in float32 on a CPU, through `mlp_update.cpp`.

What it computes is what PPO computes through autograd, which is the definition; on two cores it takes a third of the
time. Without a compiler `MlpUpdate.of` gives None and autograd does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from finrl_pod.native.library import load
from finrl_pod.rl.networks import MlpPolicy, Policy
from finrl_pod.rl.parameters import Parameters
from finrl_pod.types import Tensor

SOURCE = Path(__file__).with_name("mlp_update.cpp")
TOWERS = ("actor", "critic")
MOST_LAYERS = 9
_PAIR, _LAYERS = ctypes.c_void_p * 2, ctypes.c_int64 * MOST_LAYERS


class _Batch(ctypes.Structure):
    """`struct Batch` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "items", "accounts", "own", "actions", "layers")),
        ("parameters", ctypes.c_int64),
        ("width", _LAYERS),
        ("weight_at", _LAYERS * 2),
        ("bias_at", _LAYERS * 2),
        ("log_std_at", ctypes.c_int64),
        ("flat", ctypes.c_void_p),
        ("base", _PAIR),
        *((name, ctypes.c_void_p) for name in ("account", "action", "old", "advantage", "target")),
        *((name, ctypes.c_void_p) for name in ("clip", "value_weight", "entropy", "gradient")),
        ("grad_base", _PAIR),
        ("figures", ctypes.c_void_p),
    ]


class MlpUpdate:
    """Called with a minibatch; gives the gradient of the loss of every member, and the figures PPO reports."""

    def __init__(self, library: ctypes.CDLL, policy: MlpPolicy, parameters: Parameters) -> None:
        self._run, self._forward, self._parameters = library.mlp_update, library.mlp_forward, parameters
        self._run.restype, self._run.argtypes = None, [ctypes.c_void_p]
        self._forward.restype = None
        self._forward.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        hidden = policy.spec.hidden
        at = parameters.starts
        batch = _Batch()
        batch.members, batch.parameters = parameters.flat.shape
        batch.own, batch.actions, batch.layers = policy.spec.own, policy.spec.action_size, len(hidden) + 1
        batch.width[: len(hidden) + 1] = (*hidden, policy.spec.action_size)
        for t, tower in enumerate(TOWERS):
            batch.weight_at[t][0] = at[f"{tower}_own_w"]
            for i in range(1, len(hidden) + 1):
                batch.weight_at[t][i], batch.bias_at[t][i] = at[f"{tower}_w{i}"], at[f"{tower}_b{i}"]
        batch.log_std_at = at["log_std"]
        self._batch = batch

    @classmethod
    def of(cls, policy: Policy, parameters: Parameters) -> MlpUpdate | None:
        """The kernel for these, or None where autograd must do."""
        flat = parameters.flat
        if (
            not isinstance(policy, MlpPolicy)
            or policy.spec.action == "discrete"
            or len(policy.spec.hidden) >= MOST_LAYERS
        ):
            return None
        if flat.device.type != "cpu" or flat.dtype != torch.float32:
            return None
        library = load(SOURCE)
        return None if library is None else cls(library, policy, parameters)

    @torch.no_grad()
    def __call__(
        self, features: Tensor, numbers: Sequence[Tensor], settings: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Gradient [P, D], and KL, share clipped, policy loss and value loss as [4, P], all means over the batch.

        features: [P, M, N, F]; numbers: account [P, M, A, 1 + N], action [P, M, A, D], then the old log-probability,
        the normalised advantage and the value's target [P, M, A]; settings: clip, value weight, entropy weight [P].
        """
        flat, batch = self._parameters.flat, self._batch
        p, items, accounts, _ = numbers[0].shape
        rows = features.flatten(2)
        base = [self._base(rows, tower) for tower in TOWERS]
        numbers, settings = [x.contiguous() for x in numbers], [x.contiguous() for x in settings]
        gradient, figures = torch.empty_like(flat), torch.empty(p, 4, dtype=torch.float64)
        grad_base = [torch.empty_like(x) for x in base]
        batch.items, batch.accounts = items, accounts
        batch.flat, batch.gradient, batch.figures = flat.data_ptr(), gradient.data_ptr(), figures.data_ptr()
        batch.account, batch.action, batch.old, batch.advantage, batch.target = (x.data_ptr() for x in numbers)
        batch.clip, batch.value_weight, batch.entropy = (x.data_ptr() for x in settings)
        batch.base[:], batch.grad_base[:] = [x.data_ptr() for x in base], [x.data_ptr() for x in grad_base]
        self._run(ctypes.byref(batch))
        into = self._parameters.views_of(gradient)
        for tower, back in zip(TOWERS, grad_base, strict=True):
            into[f"{tower}_table_w"].copy_(torch.bmm(rows.transpose(1, 2), back))
            into[f"{tower}_b0"].copy_(back.sum(1))
        return gradient, figures.t().to(flat.dtype)

    @torch.no_grad()
    def forward(self, tower: str, features: Tensor, account: Tensor) -> Tensor:
        """What the actor or the critic says: features [P, K, N, F], account [P, K, A, 1 + N] -> [P, K, A, D or 1]."""
        batch, account = self._batch, account.contiguous()
        p, items, accounts, _ = account.shape
        base = self._base(features.flatten(2), tower)
        t = TOWERS.index(tower)
        out = torch.empty(p, items, accounts, 1 if t else batch.actions)
        batch.items, batch.accounts, batch.flat = items, accounts, self._parameters.flat.data_ptr()
        batch.account, batch.base[t] = account.data_ptr(), base.data_ptr()
        self._forward(ctypes.byref(batch), t, out.data_ptr())
        return out

    def _base(self, rows: Tensor, tower: str) -> Tensor:
        """The table's part of a tower's first sum: rows [P, K, N F] -> [P, K, H]."""
        views = self._parameters.views
        return torch.baddbmm(views[f"{tower}_b0"].unsqueeze(1), rows, views[f"{tower}_table_w"]).contiguous()

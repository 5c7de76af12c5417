"""A policy in float32 on a CPU through a kernel of its own: its values, actions drawn from it, a step of PPO.

What it computes is what PPO computes through autograd, which is the definition; on two cores it takes a third of the
time. `fused` gives None where there is no kernel for a policy, or no compiler, and autograd does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from finrl_pod.native.library import load
from finrl_pod.rl.networks.policies import EquivariantPolicy, MlpPolicy, Policy
from finrl_pod.rl.training.optimiser import Adam, Parameters
from finrl_pod.types import Tensor

MLP, EQUIVARIANT = (Path(__file__).with_name(f"{name}_update.cpp") for name in ("mlp", "equivariant"))
SETTINGS = ("clip", "value_weight", "entropy", "learning_rate", "max_grad_norm", "target_kl")
TOWERS = ("actor", "critic")
ACTOR, CRITIC = range(2)
MOST_LAYERS, LANES = 9, 8
FIGURES = 5
_LAYERS = ctypes.c_int64 * MOST_LAYERS


class _Data(ctypes.Structure):
    """`struct Data` of the kernels."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "items", "accounts", "total", "own", "table", "actions")),
        *((name, ctypes.c_int64) for name in ("parameters", "spreads", "log_std_at")),
        *((name, ctypes.c_void_p) for name in ("flat", "features", "day", "chosen")),
        *((name, ctypes.c_void_p) for name in ("account", "action", "old", "advantage", "target")),
        *((name, ctypes.c_void_p) for name in ("clip", "value_weight", "entropy")),
    ]


class _Mlp(_Data):
    """`struct Batch` of the kernel of the MLP."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("width", _LAYERS),
        ("table_at", ctypes.c_int64 * 2),
        ("weight_at", _LAYERS * 2),
        ("bias_at", _LAYERS * 2),
    ]


_PLACES = (
    *("encode_w", "encode_b", "code_w", "context_w", "code_b", "holding_w", "score_w", "linear_w", "cash_w", "cash_b"),
    *("inertia", "value_encode_w", "value_encode_b", "value_context_w", "value_holding_w", "value_b", "value_w"),
    "value_out_b",
)


class _Equivariant(_Data):
    """`struct Batch` of the kernel of the equivariant policy."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("assets", "inputs", "hidden", "size", "has_cash", "softmax")),
        ("tradable", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _PLACES),
    ]


class _Step(ctypes.Structure):
    """`struct Step` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("flat", "first", "second", "steps", "rate", "most_norm", "most_kl")),
        *((name, ctypes.c_void_p) for name in ("active", "alive", "figures")),
        *((name, ctypes.c_double) for name in ("decay_1", "decay_2", "epsilon")),
    ]


def fused(policy: Policy, parameters: Parameters, features: Tensor, tradable: Tensor | None) -> Fused | None:
    """The kernel for these, or None where autograd must do. features: [T, N, F]; tradable: [T, N] bool or None."""
    if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in (parameters.flat, features)):
        return None
    if policy.spec.action == "discrete" or policy.spec.activation != "tanh":
        return None
    if type(policy) is MlpPolicy and len(policy.spec.hidden) < MOST_LAYERS:
        library = load(MLP)
        return None if library is None else Fused(library, _mlp(policy, parameters), parameters, (features,))
    widths = (policy.spec.hidden[0], policy.spec.hidden[-1])
    if isinstance(policy, EquivariantPolicy) and not any(width % LANES for width in widths):
        library = load(EQUIVARIANT)
        tables = (features,) if tradable is None else (features, tradable)
        return None if library is None else Fused(library, _equivariant(policy, parameters), parameters, tables)
    return None


def _mlp(policy: MlpPolicy, parameters: Parameters) -> _Mlp:
    spec, at, batch = policy.spec, parameters.starts, _Mlp()
    batch.own, batch.layers = spec.own, len(spec.hidden) + 1
    batch.width[: batch.layers] = (*spec.hidden, spec.action_size)
    for t, tower in enumerate(TOWERS):
        batch.table_at[t], batch.weight_at[t][0] = at[f"{tower}_table_w"], at[f"{tower}_own_w"]
        batch.bias_at[t][0] = at[f"{tower}_b0"]
        for i in range(1, batch.layers):
            batch.weight_at[t][i], batch.bias_at[t][i] = at[f"{tower}_w{i}"], at[f"{tower}_b{i}"]
    return batch


def _equivariant(policy: EquivariantPolicy, parameters: Parameters) -> _Equivariant:
    spec, batch = policy.spec, _Equivariant()
    batch.assets, batch.inputs, batch.hidden, batch.size = spec.assets, spec.features, spec.hidden[0], spec.hidden[-1]
    batch.own = spec.own
    batch.has_cash, batch.softmax = spec.has_cash_score, spec.action == "softmax"
    for name in _PLACES:
        setattr(batch, name, parameters.starts.get(name, 0))
    return batch


class Fused:
    """Holds where everything lies: the parameters of P members and the market table."""

    def __init__(
        self, library: ctypes.CDLL, batch: _Mlp | _Equivariant, parameters: Parameters, tables: Sequence[Tensor]
    ) -> None:
        """tables: the features [T, N, F], and which assets can be traded [T, N] where not all always can."""
        pointer = ctypes.c_void_p
        self._step, self._forward, self._draw = library.policy_step, library.policy_forward, library.policy_draw
        self._step.restype = self._forward.restype = self._draw.restype = None
        self._step.argtypes = [pointer] * 2
        self._forward.argtypes = [pointer, ctypes.c_int64, pointer]
        self._draw.argtypes = [pointer] * 4
        self._flat, self._tables = parameters.flat, [x.contiguous() for x in tables]
        features = self._tables[0]
        log_std = parameters.shapes["log_std"]
        batch.members, batch.parameters = self._flat.shape
        batch.table, batch.spreads = features[0].numel(), log_std[0]
        batch.actions = batch.width[batch.layers - 1] if isinstance(batch, _Mlp) else batch.assets + batch.has_cash
        batch.log_std_at, batch.flat, batch.features = (
            parameters.starts["log_std"],
            self._flat.data_ptr(),
            features.data_ptr(),
        )
        if len(self._tables) > 1:
            batch.tradable = self._tables[1].data_ptr()
        self._batch, self._at = batch, ctypes.addressof(batch)

    @torch.no_grad()
    def step(
        self,
        data: Sequence[Tensor],
        chosen: Tensor,
        settings: Mapping[str, Tensor],
        optimiser: Adam,
        active: Tensor,
        alive: Tensor,
    ) -> Tensor:
        """One minibatch: moves parameters and `optimiser`; KL, share clipped, policy and value loss, norm: [5, P].

        data: day [P, I], account [P, I, A, 1 + N], action [P, I, A, D], then the old log-probability, the advantage,
        which is normalised here, and the value's target [P, I, A]; chosen: the items of the minibatch [P, M];
        settings: PPO's by name [P]; active: who takes part, [P] bool; alive: changed in place.
        """
        data, chosen = [x.contiguous() for x in data], chosen.contiguous()
        of = {name: settings[name].contiguous() for name in SETTINGS}
        batch, members = self._batch, self._flat.shape[0]
        _, batch.total, batch.accounts = data[-1].shape
        batch.items, batch.chosen = chosen.shape[1], chosen.data_ptr()
        batch.day, batch.account, batch.action, batch.old, batch.advantage, batch.target = (x.data_ptr() for x in data)
        batch.clip, batch.value_weight = of["clip"].data_ptr(), of["value_weight"].data_ptr()
        batch.entropy = of["entropy"].data_ptr()
        figures = torch.empty(FIGURES, members)
        moments = (optimiser.first, optimiser.second, optimiser.steps)
        limits = (of["learning_rate"], of["max_grad_norm"], of["target_kl"])
        pointers = [x.data_ptr() for x in (self._flat, *moments, *limits, active, alive, figures)]
        self._step(self._at, ctypes.byref(_Step(*pointers, *optimiser.constants)))
        return figures

    def mean(self, day: Tensor, account: Tensor) -> Tensor:
        """Mean scores: day [P, K], account [P, K, A, 1 + N] -> [P, K, A, D]."""
        return self._say(ACTOR, day, account, self._batch.actions)

    def value(self, day: Tensor, account: Tensor) -> Tensor:
        """[P, K, A]."""
        return self._say(CRITIC, day, account, 1).squeeze(-1)

    def draw(self, day: Tensor, account: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] drawn with standard normal noise of that shape, and their log-probability [P, K, A]."""
        kept = self._states(day, account)
        noise = noise.contiguous()
        action, chance = torch.empty_like(noise), torch.empty(noise.shape[:-1])
        self._draw(self._at, noise.data_ptr(), action.data_ptr(), chance.data_ptr())
        del kept
        return action, chance

    def _say(self, tower: int, day: Tensor, account: Tensor, size: int) -> Tensor:
        kept = self._states(day, account)
        out = torch.empty(*account.shape[:-1], size)
        self._forward(self._at, tower, out.data_ptr())
        del kept
        return out

    def _states(self, day: Tensor, account: Tensor) -> tuple[Tensor, Tensor]:
        """Points the kernel to these states, all in order; what is returned must live until it has run."""
        batch = self._batch
        day, account = day.contiguous(), account.contiguous()
        _, batch.items, batch.accounts, _ = account.shape
        batch.total, batch.chosen = batch.items, None
        batch.day, batch.account = day.data_ptr(), account.data_ptr()
        return day, account

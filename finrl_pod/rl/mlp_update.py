"""An `MlpPolicy` in float32 on a CPU through `mlp_update.cpp`: its values, actions drawn from it, a step of PPO.

What it computes is what PPO computes through autograd, which is the definition; on two cores an update takes a quarter
of the time. Without a compiler `MlpUpdate.of` gives None and autograd does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from finrl_pod.native.library import load
from finrl_pod.rl.networks import MlpPolicy, Policy
from finrl_pod.rl.parameters import ADAM_DECAY_1, ADAM_DECAY_2, ADAM_EPSILON, Adam, Parameters
from finrl_pod.types import Tensor

SOURCE = Path(__file__).with_name("mlp_update.cpp")
SETTINGS = ("clip", "value_weight", "entropy", "learning_rate", "max_grad_norm", "target_kl")
TOWERS = ("actor", "critic")
ACTOR, CRITIC = range(2)
MOST_LAYERS = 9
FIGURES = 5
_LAYERS = ctypes.c_int64 * MOST_LAYERS


class _Batch(ctypes.Structure):
    """`struct Batch` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "items", "accounts", "total", "own", "table", "actions")),
        *((name, ctypes.c_int64) for name in ("layers", "parameters")),
        ("width", _LAYERS),
        ("table_at", ctypes.c_int64 * 2),
        ("weight_at", _LAYERS * 2),
        ("bias_at", _LAYERS * 2),
        ("log_std_at", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("flat", "features", "day", "chosen")),
        *((name, ctypes.c_void_p) for name in ("account", "action", "old", "advantage", "target")),
        *((name, ctypes.c_void_p) for name in ("clip", "value_weight", "entropy")),
    ]


class _Step(ctypes.Structure):
    """`struct Step` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("flat", "first", "second", "steps", "rate", "most_norm", "most_kl")),
        *((name, ctypes.c_void_p) for name in ("active", "alive", "figures")),
        *((name, ctypes.c_double) for name in ("decay_1", "decay_2", "epsilon")),
    ]


class MlpUpdate:
    """Holds where everything lies: the parameters of P members and the market table [T, N, F]."""

    def __init__(self, library: ctypes.CDLL, policy: MlpPolicy, parameters: Parameters, features: Tensor) -> None:
        pointer = ctypes.c_void_p
        self._step, self._forward, self._draw = library.mlp_step, library.mlp_forward, library.mlp_draw
        self._step.restype = self._forward.restype = self._draw.restype = None
        self._step.argtypes = [pointer] * 2
        self._forward.argtypes = [pointer, ctypes.c_int64, pointer]
        self._draw.argtypes = [pointer] * 4
        self._flat, self._features = parameters.flat, features.contiguous()
        hidden, at = policy.spec.hidden, parameters.starts
        batch = _Batch()
        batch.members, batch.parameters = parameters.flat.shape
        batch.own, batch.actions, batch.layers = policy.spec.own, policy.spec.action_size, len(hidden) + 1
        batch.table = self._features[0].numel()
        batch.width[: len(hidden) + 1] = (*hidden, policy.spec.action_size)
        for t, tower in enumerate(TOWERS):
            batch.table_at[t], batch.weight_at[t][0] = at[f"{tower}_table_w"], at[f"{tower}_own_w"]
            batch.bias_at[t][0] = at[f"{tower}_b0"]
            for i in range(1, len(hidden) + 1):
                batch.weight_at[t][i], batch.bias_at[t][i] = at[f"{tower}_w{i}"], at[f"{tower}_b{i}"]
        batch.log_std_at = at["log_std"]
        batch.flat, batch.features = self._flat.data_ptr(), self._features.data_ptr()
        self._batch, self._at = batch, ctypes.addressof(batch)

    @classmethod
    def of(cls, policy: Policy, parameters: Parameters, features: Tensor) -> MlpUpdate | None:
        """The kernel for these, or None where autograd must do."""
        if not isinstance(policy, MlpPolicy) or len(policy.spec.hidden) >= MOST_LAYERS:
            return None
        if policy.spec.action == "discrete":
            return None
        if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in (parameters.flat, features)):
            return None
        library = load(SOURCE)
        return None if library is None else cls(library, policy, parameters, features)

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
        self._step(self._at, ctypes.byref(_Step(*pointers, ADAM_DECAY_1, ADAM_DECAY_2, ADAM_EPSILON)))
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

"""The gradients of soft actor-critic for plain networks on flat rows, in float32 on a CPU, through `sac_update.cpp`.

What it computes is what `SAC` computes through autograd, which is the definition. Without a compiler `SacUpdate.of`
gives None and autograd does the work.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finrl_pod.native.library import load
from finrl_pod.rl.actors import MlpActor
from finrl_pod.rl.critics import MlpCritic
from finrl_pod.rl.parameters import Parameters
from finrl_pod.types import Tensor

if TYPE_CHECKING:
    from finrl_pod.rl.off_policy import Batch
    from finrl_pod.rl.sac import SAC

SOURCE = Path(__file__).with_name("sac_update.cpp")
MOST_LAYERS = 9
RULES = ("min", "mean")


class _Net(ctypes.Structure):
    """`struct Net` of the kernel."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("width", ctypes.c_int64 * (MOST_LAYERS + 1)),
        ("weight_at", ctypes.c_int64 * MOST_LAYERS),
        ("bias_at", ctypes.c_int64 * MOST_LAYERS),
    ]


_SIZES = ("members", "critics", "batch", "row", "actions", "mean")
_INPUTS = ("seen", "action", "reward", "going", "following", "noise")
_POINTERS = ("actors", "values", "targets", *_INPUTS, "temperature", "discount", "gradient", "figures")


class _Update(ctypes.Structure):
    """`struct Update` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        ("actor", _Net),
        ("critic", _Net),
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "memory")),
    ]


class SacUpdate:
    """The gradients of an update's critics, and then of its actor."""

    def __init__(self, library: ctypes.CDLL, sac: SAC) -> None:
        self._sac, self._critics, self._actor = sac, library.sac_critics, library.sac_actor
        for function in (self._critics, self._actor):
            function.restype, function.argtypes = None, [ctypes.c_void_p]
        parts = sac.trained.parts
        self._actors, self._values = parts["actor"].parameters, parts["critic"].parameters
        self._targets = sac.trained.targets["critic"].flat
        update = _Update()
        update.members, update.critics, update.mean = sac.members, sac.critics, sac.rule == "mean"
        update.batch, update.row, update.actions = sac.items, sac.spec.features, sac.spec.action_size
        update.actor, update.critic = _net(self._actors), _net(self._values)
        update.actors, update.values = self._actors.flat.data_ptr(), self._values.flat.data_ptr()
        update.targets = self._targets.data_ptr()
        self._gradients = {name: torch.empty_like(parts[name].parameters.flat) for name in ("actor", "critic")}
        self._figures = torch.empty(2, sac.members * sac.critics)
        library.sac_memory.restype, library.sac_forget.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        update.memory = library.sac_memory()
        weakref.finalize(self, library.sac_forget, update.memory)
        self._update = update

    @classmethod
    def of(cls, sac: SAC) -> SacUpdate | None:
        """The kernel for this one, or None where autograd must do."""
        plain = isinstance(sac.network, MlpActor) and isinstance(sac.critic, MlpCritic)
        if not plain or sac.spec.assets or sac.rule not in RULES or len(sac.spec.hidden) >= MOST_LAYERS:
            return None
        if sac.device.type != "cpu" or sac.dtype != torch.float32:
            return None
        library = load(SOURCE)
        return None if library is None else cls(library, sac)

    def critics(self, batch: Batch, extra: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [P * M, D] of the critics, their losses and their mean values [P * M]."""
        fields = (
            batch.seen.account, batch.action, batch.reward, batch.going, batch.following.account, extra,
        )  # fmt: skip
        self._kept: list[Any] = [x.contiguous() for x in (*fields, temperature, self._sac.settings["discount"])]
        for name, x in zip((*_INPUTS, "temperature", "discount"), self._kept, strict=True):
            setattr(self._update, name, x.data_ptr())
        loss, value = self._run(self._critics, "critic")
        return self._gradients["critic"], loss, value

    def actor(self) -> tuple[Tensor, Tensor, Tensor]:
        """After `critics`, of the same batch: gradient [P, D] of the actor, its loss and its entropy [P]."""
        figures = self._run(self._actor, "actor").view(-1)[: 2 * self._sac.members].view(2, -1)
        return self._gradients["actor"], figures[0], figures[1]

    def _run(self, function: Any, part: str) -> Tensor:
        update, figures = self._update, torch.empty_like(self._figures)
        update.gradient, update.figures = self._gradients[part].data_ptr(), figures.data_ptr()
        function(ctypes.byref(update))
        return figures


def _net(parameters: Parameters) -> _Net:
    """Where w0, b0, w1, ... stand in a row."""
    net = _Net()
    net.layers, net.parameters = len(parameters.shapes) // 2, parameters.flat.shape[1]
    net.width[0] = parameters.shapes["w0"][0]
    for i in range(net.layers):
        net.width[i + 1] = parameters.shapes[f"w{i}"][1]
        net.weight_at[i], net.bias_at[i] = parameters.starts[f"w{i}"], parameters.starts[f"b{i}"]
    return net

"""The gradients of actor-critics for plain networks on flat rows, in float32 on a CPU: `actor_critic_update.cpp`.

What it computes is what the algorithms compute through autograd, which is the definition. Without a compiler
`ActorCriticUpdate.of` gives None and autograd does the work.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finrl_pod.native.library import load
from finrl_pod.rl.networks.actors import MlpActor
from finrl_pod.rl.networks.critics import MlpCritic
from finrl_pod.rl.training.optimiser import Parameters
from finrl_pod.types import Tensor

if TYPE_CHECKING:
    from finrl_pod.rl.algorithms.actor_critic import ActorCritic
    from finrl_pod.rl.algorithms.off_policy import Batch

SOURCE = Path(__file__).with_name("actor_critic_update.cpp")
MOST_LAYERS = 9
RULES = {"min": 0, "mean": 1, "subset": 2, "first": 3}


class _Net(ctypes.Structure):
    """`struct Net` of the kernel."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("width", ctypes.c_int64 * (MOST_LAYERS + 1)),
        ("weight_at", ctypes.c_int64 * MOST_LAYERS),
        ("bias_at", ctypes.c_int64 * MOST_LAYERS),
    ]


_SIZES = ("members", "critics", "batch", "row", "actions", "soft", "smoothed", "improves", "rule", "climbs", "subset")
_NETWORKS = ("actors", "followers", "values", "targets")
_BATCH = ("seen", "action", "reward", "going", "following", "noise")
_SETTINGS = ("temperature", "discount", "spread", "most", "chosen")


class _Update(ctypes.Structure):
    """`struct Update` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        ("actor", _Net),
        ("critic", _Net),
        *((name, ctypes.c_void_p) for name in (*_NETWORKS, *_BATCH, *_SETTINGS, "gradient", "figures", "memory")),
    ]


class ActorCriticUpdate:
    """The gradients of an update's critics, and then of its actor."""

    def __init__(self, library: ctypes.CDLL, owner: ActorCritic) -> None:
        self._critics, self._actor = library.update_critics, library.update_actor
        # Not the owner itself: the two would hold each other, and a replay with them.
        self._members, self._settings = owner.members, owner.settings
        for function in (self._critics, self._actor):
            function.restype, function.argtypes = None, [ctypes.c_void_p]
        parts, targets = owner.trained.parts, owner.trained.targets
        actors, values = parts["actor"].parameters, parts["critic"].parameters
        update = _Update()
        update.members, update.critics, update.subset = owner.members, owner.critics, owner.subset
        update.soft, update.smoothed = owner.HEADS == 2, "target_noise" in owner.settings
        update.rule, update.climbs = RULES[owner.rule], RULES[owner.climbs]
        update.batch, update.row, update.actions = owner.items, owner.spec.features, owner.spec.action_size
        update.actor, update.critic = _net(actors), _net(values)
        followers = targets["actor"].flat if "actor" in targets else actors.flat
        self._networks = (actors.flat, followers, values.flat, targets["critic"].flat)
        for name, x in zip(_NETWORKS, self._networks, strict=True):
            setattr(update, name, x.data_ptr())
        library.actor_critic_memory.restype = ctypes.c_void_p
        library.actor_critic_forget.argtypes = [ctypes.c_void_p]
        update.memory = library.actor_critic_memory()
        weakref.finalize(self, library.actor_critic_forget, update.memory)
        self._gradients = {name: torch.empty_like(parts[name].parameters.flat) for name in ("actor", "critic")}
        self._figures = torch.empty(2, owner.members * owner.critics)
        self._update = update

    @classmethod
    def of(cls, owner: ActorCritic) -> ActorCriticUpdate | None:
        """The kernel for this one, or None where autograd must do, as for a class that does not say `KERNEL` itself."""
        if not vars(type(owner)).get("KERNEL", False):
            return None
        plain = isinstance(owner.network, MlpActor) and isinstance(owner.critic, MlpCritic)
        if not plain or owner.spec.assets or len(owner.spec.hidden) >= MOST_LAYERS:
            return None
        if owner.device.type != "cpu" or owner.dtype != torch.float32:
            return None
        library = load(SOURCE)
        return None if library is None else cls(library, owner)

    def critics(
        self,
        batch: Batch,
        noise: Tensor,
        *,
        improves: bool,
        temperature: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [P * M, D] of the critics, their losses and their mean values [P * M].

        noise: standard normal, as the algorithm asks for it. improves: `actor` is called for this batch. temperature
        [P] of soft ones; chosen [P, subset]: the critics whose minimum is the target, by the rule "subset".
        """
        assert batch.reward[0].numel() == self._update.batch
        settings = self._settings
        fields = (batch.seen.account, batch.action, batch.reward, batch.going, batch.following.account, noise)
        given = (
            temperature, settings["discount"], settings.get("target_noise"), settings.get("noise_clip"), chosen,
        )  # fmt: skip
        self._kept: list[Any] = [None if x is None else x.contiguous() for x in (*fields, *given)]
        for name, x in zip((*_BATCH, *_SETTINGS), self._kept, strict=True):
            setattr(self._update, name, None if x is None else x.data_ptr())
        self._update.improves = improves
        loss, value = self._run(self._critics, "critic")
        return self._gradients["critic"], loss, value

    def actor(self) -> tuple[Tensor, Tensor, Tensor]:
        """After `critics`, of the same batch: gradient [P, D] of the actor, its loss and its entropy [P]."""
        figures = self._run(self._actor, "actor").view(-1)[: 2 * self._members].view(2, -1)
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

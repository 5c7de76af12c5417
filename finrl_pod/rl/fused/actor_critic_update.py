"""Gradients of off-policy actor-critics with plain networks, in float32 on the CPU: glue for `actor_critic_update.cpp`.

The kernel computes what `_update` of each algorithm computes through autograd; a test compares the two.
`make_actor_critic_kernel` returns None where there is no compiler, and autograd is used instead.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finrl_pod.native.library import argument_struct, load
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.optimiser import Parameters
from finrl_pod.rl.optimisation.train_state import TrainState
from finrl_pod.types import Tensor

SOURCE = Path(__file__).with_name("actor_critic_update.cpp")
MAX_LAYERS = 9  # as in the kernel
ENSEMBLE_RULES = {"min": 0, "mean": 1, "subset": 2, "first": 3}  # `enum EnsembleRule` of the kernel


class EnsembleRules(NamedTuple):
    """How the values of the critics of a member become one.

    target: "min", "mean" or "subset" of the target critics, a random subset of `subset` critics. actor: what the actor
    maximises: "min", "mean" or "first". is_stochastic: the actor outputs the mean and log standard deviation of a
    squashed Gaussian (SAC, REDQ).
    """

    target: str
    actor: str
    subset: int
    is_stochastic: bool


_NETWORKS = ("actors", "target_actors", "values", "target_values")
_TRANSITIONS = ("obs", "action", "reward", "not_done", "next_obs", "noise")
_SETTINGS = ("temperature", "discount", "target_noise", "noise_clip", "subset")


def make_actor_critic_kernel(
    train_state: TrainState, spec: PolicySpec, rules: EnsembleRules, settings: Mapping[str, Tensor], batch_size: int
) -> ActorCriticKernel | None:
    """The kernel for the parts "actor" and "critic", or None: other device or dtype, too many layers, or no compiler.

    settings: [P] each, read at every update: `gamma`, for TD3 also the smoothing noise. batch_size: transitions
    per update (B).
    """
    networks = [part.parameters for part in train_state.parts.values()]
    if any(x.flat.device.type != "cpu" or x.flat.dtype != torch.float32 for x in networks):
        return None
    if any(_layers_of(x) > MAX_LAYERS for x in networks):
        return None
    library = load(SOURCE)
    return None if library is None else ActorCriticKernel(library, train_state, spec, rules, settings, batch_size)


class ActorCriticKernel:
    """Gradients of one update: first of the critics, then, on the same batch, of the actor."""

    def __init__(
        self,
        library: ctypes.CDLL,
        train_state: TrainState,
        spec: PolicySpec,
        rules: EnsembleRules,
        settings: Mapping[str, Tensor],
        batch_size: int,
    ) -> None:
        self._update_critics = library.update_critics
        self._update_actor = library.update_actor
        for function in (self._update_critics, self._update_actor):
            function.restype = None
            function.argtypes = [ctypes.c_void_p]
        self._members = train_state.members
        self._settings = settings
        actor, _, _ = train_state.parts["actor"]
        critic, _, critics = train_state.parts["critic"]
        targets = train_state.targets
        update = argument_struct(SOURCE, "Update")()
        update.members = train_state.members
        update.critics = critics
        update.batch = batch_size
        update.obs_size = spec.features
        update.actions = spec.action_size
        update.stochastic = rules.is_stochastic
        update.smoothed = "target_noise" in settings
        update.target_rule = ENSEMBLE_RULES[rules.target]
        update.actor_rule = ENSEMBLE_RULES[rules.actor]
        update.subset_size = rules.subset
        _set_net(update.actor, actor)
        _set_net(update.critic, critic)
        # Without a target actor, the actor itself acts in the next state.
        target_actor = targets["actor"].flat if "actor" in targets else actor.flat
        self._networks = (actor.flat, target_actor, critic.flat, targets["critic"].flat)
        for name, x in zip(_NETWORKS, self._networks, strict=True):
            setattr(update, name, x.data_ptr())
        library.actor_critic_workspace_new.restype = ctypes.c_void_p
        library.actor_critic_workspace_delete.argtypes = [ctypes.c_void_p]
        update.workspace = library.actor_critic_workspace_new()
        weakref.finalize(self, library.actor_critic_workspace_delete, update.workspace)
        self._critic_gradient = torch.empty_like(critic.flat)
        self._actor_gradient = torch.empty_like(actor.flat)
        self._metrics = torch.empty(2, train_state.members * critics)
        self._update = update

    def critics(
        self,
        transitions: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        noise: Tensor,
        *,
        updates_actor: bool,
        temperature: Tensor | None = None,
        subset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [P * M, D] of the critics' squared error, their losses [P * M] and their mean values [P * M].

        transitions: observation [P, K, A, obs_size], action [P, K, A, action_size], reward [P, K, A], 0 after a
        terminal step and 1 elsewhere [P, K, A], next observation, with K * A = batch_size. noise: standard normal,
        [P, 2, K, A, action_size] of a stochastic actor (next state, this state), [P, K, A, action_size] if the target
        action is smoothed. updates_actor: whether `actor` follows for this batch. temperature: [P] of a stochastic
        actor. subset: [P, subset] int64, the critics whose minimum is the target under the rule "subset".
        """
        assert transitions[2][0].numel() == self._update.batch
        settings = self._settings
        smoothing = (settings.get("target_noise"), settings.get("noise_clip"))
        tensors = (*transitions, noise, temperature, settings["gamma"], *smoothing, subset)
        # These stay alive until `actor` has run.
        self._inputs = [None if x is None else x.contiguous() for x in tensors]
        for name, x in zip((*_TRANSITIONS, *_SETTINGS), self._inputs, strict=True):
            setattr(self._update, name, None if x is None else x.data_ptr())
        self._update.updates_actor = updates_actor
        loss, value = self._run(self._update_critics, self._critic_gradient)
        return self._critic_gradient, loss, value

    def actor(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [P, D] of the actor on the batch of the last `critics` call, its loss and its entropy [P]."""
        metrics = self._run(self._update_actor, self._actor_gradient).view(-1)[: 2 * self._members].view(2, -1)
        return self._actor_gradient, metrics[0], metrics[1]

    def _run(self, function: Any, gradient: Tensor) -> Tensor:
        metrics = torch.empty_like(self._metrics)
        self._update.gradient = gradient.data_ptr()
        self._update.metrics = metrics.data_ptr()
        function(ctypes.byref(self._update))
        return metrics


def _layers_of(parameters: Parameters) -> int:
    return len(parameters.shapes) // 2  # a weight and a bias each


def _set_net(net: Any, parameters: Parameters) -> None:
    """Set widths of the network, and where w0, b0, w1, ... start in a row of the parameters."""
    net.layers = _layers_of(parameters)
    net.parameters = parameters.flat.shape[1]
    net.width[0] = parameters.shapes["w0"][0]
    for i in range(net.layers):
        net.width[i + 1] = parameters.shapes[f"w{i}"][1]
        net.weight_at[i] = parameters.starts[f"w{i}"]
        net.bias_at[i] = parameters.starts[f"b{i}"]

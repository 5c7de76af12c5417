"""Updates in float32 on the CPU by C++: PPO with an MLP or equivariant policy, and off-policy actor-critics with MLPs.

The kernels compute what the algorithms compute through autograd; tests compare the two. On two cores PPO takes a third
of the time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finrl_pod.native.device import on_device
from finrl_pod.native.library import argument_struct, load
from finrl_pod.rl.networks.policies import EquivariantPolicy, MlpPolicy, Policy, PolicySpec
from finrl_pod.rl.optimisation.optimiser import Adam, Parameters, TrainState
from finrl_pod.types import Tensor

MLP, EQUIVARIANT, ACTOR_CRITIC = (
    Path(__file__).with_name(f"{name}.cpp") for name in ("mlp_policy", "equivariant_policy", "actor_critic_update")
)
TOWERS = ACTOR, CRITIC = range(2)  # `enum Tower` of the kernel
MAX_LAYERS = 9  # of an MLP, as in the kernels
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
        kind = (MLP, _mlp_batch)
    elif (
        isinstance(policy, EquivariantPolicy)
        and len(spec.hidden) <= 2
        and not any(width % LANES for width in spec.hidden)
        and not spec.has_extras
    ):
        kind = (EQUIVARIANT, _equivariant_batch)
    else:
        return None
    source, describe = kind
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


ENSEMBLE_RULES = {"min": 0, "mean": 1, "subset": 2, "first": 3}  # `enum EnsembleRule` of the kernel


class EnsembleRules(NamedTuple):
    """Target: rule of the target critics, over `subset` of them. Actor: rule of what the actor maximises.

    is_stochastic: the actor outputs the mean and log standard deviation of a squashed Gaussian (SAC, REDQ).
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
    library = load(ACTOR_CRITIC)
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
        update = argument_struct(ACTOR_CRITIC, "Update")()
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

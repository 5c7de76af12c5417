"""Parameters of P members in one flat [P, W] tensor, optimisers with settings for each member, and target networks.

Copying a member is copying a row; masking a member is one torch.where.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.native.device import on_device
from finrl_pod.rl.native import kernels
from finrl_pod.types import Tensor

WEIGHT_NAME = re.compile(r"(^|_)w\d*$")  # of tensors that decay: no biases, standard deviations or temperatures
CRITIC_PREFIXES = ("value_", "critic_")  # of the names of critic tensors
CONSTANTS = ADAM_DECAY_1, ADAM_DECAY_2, ADAM_EPSILON = 0.9, 0.999, 1e-8


class Parameters:
    """Named [P, ...] tensors that are views of one flat [P, D] tensor; the views are leaves for autograd."""

    def __init__(self, members: Sequence[Mapping[str, Tensor]], device: torch.device | str = "cpu") -> None:
        """members: one mapping of name to initial tensor for each of the P members, all of the same shapes."""
        rows = [torch.cat([value.reshape(-1) for value in member.values()]) for member in members]
        self.flat = torch.stack(rows).to(device)
        self.shapes = {name: tuple(value.shape) for name, value in members[0].items()}
        self.starts: dict[str, int] = {}  # offset of each tensor in a row
        start = 0
        for name, shape in self.shapes.items():
            self.starts[name] = start
            start += torch.Size(shape).numel()
        self.views = {name: view.detach().requires_grad_() for name, view in self.views_of(self.flat).items()}

    def views_of(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name of another [P, W] tensor with the layout of the parameters."""
        return {
            name: flat[:, start : start + torch.Size(self.shapes[name]).numel()].view(flat.shape[0], *self.shapes[name])
            for name, start in self.starts.items()
        }

    def gradient(self, loss: Tensor, *, partial: bool = False) -> Tensor:
        """Gradient [P, W] of a loss that is summed over members, so that rows do not mix.

        partial: allow a loss that depends on some of the parameters only; the others get zeros. Otherwise raises
        ConfigError for a parameter without effect, as custom policies and losses may have.
        """
        if not loss.requires_grad:
            raise ConfigError("the loss does not depend on the weights: compute it from them by torch operations")
        grads = torch.autograd.grad(loss, list(self.views.values()), allow_unused=True, materialize_grads=partial)
        if unused_names := [name for name, grad in zip(self.views, grads, strict=True) if grad is None]:
            raise ConfigError(
                f"the weight {unused_names[0]!r} gets no gradient, because the loss does not depend on it: use it in "
                "scores, standard deviation or value, or make it only where it is used"
            )
        return torch.cat([grad.flatten(1) for grad in grads], 1)

    def detached(self) -> dict[str, Tensor]:
        """The tensors by name, without gradients."""
        return {name: view.detach() for name, view in self.views.items()}

    def member(self, p: int) -> dict[str, Tensor]:
        """Copies of the tensors of one member on the CPU."""
        return {name: view.detach()[p].cpu().clone() for name, view in self.views.items()}

    @torch.no_grad()
    def load(self, p: int, values: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors of one member."""
        for name, view in self.views.items():
            view.detach()[p].copy_(values[name])


class Optimiser(ABC):
    """Gradient steps on [P, W]. steps: [P], counts of steps taken. state: saved tensors by name, a row per member."""

    steps: Tensor
    state: dict[str, Tensor]

    @abstractmethod
    def step(self, flat: Tensor, gradient: Tensor, learning_rate: Tensor, active: Tensor | None) -> None:
        """Update `flat` [P, W] in place. learning_rate: [P]; active: [P] bool, members that move (None: all)."""

    def member(self, p: int) -> dict[str, Tensor]:
        """Copies of the state of one member on the CPU."""
        return {name: x[p].cpu().clone() for name, x in self.state.items()}

    @torch.no_grad()
    def load(self, p: int, values: Mapping[str, Tensor]) -> None:
        """Overwrite the state of one member."""
        for name, x in self.state.items():
            x[p].copy_(values[name])


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) on [P, D] with a learning rate and a step count for each member."""

    def __init__(self, like: Tensor, epsilon: float = ADAM_EPSILON) -> None:
        self.constants = (ADAM_DECAY_1, ADAM_DECAY_2, epsilon)
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)
        self.steps = torch.zeros(like.shape[0], dtype=like.dtype, device=like.device)
        self.state = {"first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def step(self, flat: Tensor, gradient: Tensor, learning_rate: Tensor, active: Tensor | None) -> None:
        self.steps += 1 if active is None else active
        count = self.steps.clamp(min=1)
        rate = learning_rate / (1 - ADAM_DECAY_1**count)
        spread = (1 - ADAM_DECAY_2**count).sqrt()
        moments = (self.first, self.second)
        if kernels.is_supported(flat, gradient, *moments):
            kernels.adam(flat, gradient, *moments, rate, spread, active, self.constants)
            return
        moves = torch.ones_like(count, dtype=torch.bool) if active is None else active
        first = torch.lerp(self.first, gradient, 1 - ADAM_DECAY_1)
        second = (self.second * ADAM_DECAY_2).addcmul(gradient, gradient, value=1 - ADAM_DECAY_2)
        change = rate.unsqueeze(1) * first / ((second.sqrt() / spread.unsqueeze(1)) + self.constants[2])
        # Inactive members may hold NaN, so select instead of multiplying by zero.
        for tensor, new_flat in ((self.first, first), (self.second, second), (flat, flat - change)):
            tensor.copy_(torch.where(moves.unsqueeze(1), new_flat, tensor))


class WeightDecay:
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101): w <- w - rate x decay x (w - a).

    a is 0, or the weight before training if is_anchored: a penalty on the squared distance from the start (Li,
    Grandvalet and Davoine 2018, arXiv:1802.01483); the weights of critics are never anchored. No biases, standard
    deviations or temperatures shrink. The step counts of the optimiser show which members took a step.
    """

    def __init__(self, parameters: Parameters, decay: float, *, is_anchored: bool = False) -> None:
        self._flat = parameters.flat
        names = [name for name, shape in parameters.shapes.items() for _ in range(torch.Size(shape).numel())]
        weights = [bool(WEIGHT_NAME.search(name)) for name in names]
        actors = [not name.startswith(CRITIC_PREFIXES) for name in names]
        self._anchor = torch.where(torch.tensor(actors), self._flat, 0.0).clone() if is_anchored else 0.0
        self._decays = torch.tensor(weights).to(self._flat) * decay
        self._is_off = decay == 0

    @contextmanager
    def after_step(self, optimiser: Optimiser, rate: Tensor) -> Iterator[None]:
        """Shrink weights after the step taken in this context; they decay as they were before it. rate: [P]."""
        if self._is_off:
            yield
            return
        before = self._flat.detach().clone()
        steps = optimiser.steps.clone()
        yield
        with torch.no_grad():
            rates = torch.where(optimiser.steps != steps, rate, 0.0).unsqueeze(1)
            self._flat.sub_(rates * self._decays * (before - self._anchor))


class RMSprop(Optimiser):
    """RMSprop (Tieleman and Hinton 2012) on [P, W] as published with A2C: no momentum, decay 0.99."""

    DECAY = 0.99

    def __init__(self, like: Tensor, epsilon: float) -> None:
        self.square = torch.zeros_like(like)
        self.state = {"square": self.square}
        self.epsilon = epsilon
        self.steps = torch.zeros(like.shape[0], dtype=like.dtype, device=like.device)  # of this process, for the decay

    @torch.no_grad()
    def step(self, flat: Tensor, gradient: Tensor, learning_rate: Tensor, active: Tensor | None) -> None:
        self.steps += 1 if active is None else active
        square = (self.square * self.DECAY).addcmul(gradient, gradient, value=1 - self.DECAY)
        new_flat = flat - learning_rate.unsqueeze(1) * gradient / (square.sqrt() + self.epsilon)
        for tensor, new in ((self.square, square), (flat, new_flat)):
            tensor.copy_(new if active is None else torch.where(active.unsqueeze(1), new, tensor))


@torch.no_grad()
def clip_by_member(gradient: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each row of [P, D] to at most `limit` [P] in the 2-norm; returns (clipped, norm before [P])."""
    norm = gradient.norm(dim=1)
    return gradient * (limit / norm.clamp(min=1e-12)).clamp(max=1).unsqueeze(1), norm


CRITIC = "critic"  # name of the part whose weights decay to zero
RateFactor = float | Tensor  # of the learning rates: one number, or [P] for each member


class TargetNetwork:
    """Target network: name -> [R, ...] views without gradients, updated by Polyak averaging."""

    def __init__(self, parameters: Parameters) -> None:
        self.source = parameters
        self.flat = parameters.flat.clone()
        self.views = parameters.views_of(self.flat)

    @torch.no_grad()
    def polyak_update(self, rate: Tensor, active: Tensor | None) -> None:
        """Move towards the parameters by rate [R]; active: [R] bool, rows that move, None for all."""
        if active is not None:
            rate = torch.where(active, rate, 0.0)
            # Rows that do not move must not read NaN.
            source = torch.where(active.unsqueeze(1), self.source.flat, self.flat)
        else:
            source = self.source.flat
        self.flat.lerp_(source, rate.unsqueeze(1))


class Part(NamedTuple):
    """Parameters and their optimiser. per: rows of the parameters for each member."""

    parameters: Parameters
    optimiser: Adam
    per: int


class TrainState:
    """Trained parts and target networks by name. alive: [P] bool, False for members whose loss became NaN."""

    def __init__(
        self, settings: Mapping[str, Tensor], alive: Tensor, weight_decay: float = 0.0, *, is_anchored: bool = False
    ) -> None:
        """settings: learning_rate, tau and max_grad_norm, [P] each. Others: see `WeightDecay`; of critics to zero."""
        self.parts: dict[str, Part] = {}
        self.targets: dict[str, TargetNetwork] = {}
        self._decays: dict[str, WeightDecay] = {}
        self.alive = alive
        self.members = len(alive)
        self.device = alive.device
        self._settings = settings
        self._weight_decay = weight_decay
        self._is_anchored = is_anchored

    def add(self, name: str, rows: Sequence[Mapping[str, Tensor]], *, per: int = 1, target: bool = False) -> None:
        """Add a part with these initial rows, and a target network for it if `target`."""
        parameters = Parameters(rows, self.device)
        self.parts[name] = Part(parameters, Adam(parameters.flat), per)
        is_anchored = self._is_anchored and name != CRITIC
        self._decays[name] = WeightDecay(parameters, self._weight_decay, is_anchored=is_anchored)
        if target:
            self.targets[name] = TargetNetwork(parameters)

    def views(self, name: str) -> dict[str, Tensor]:
        """Differentiable parameters of a part: name -> [R, ...]."""
        return self.parts[name].parameters.views

    def detached(self, name: str) -> dict[str, Tensor]:
        """`views` without gradients."""
        return self.parts[name].parameters.detached()

    def gradient_step(self, name: str, loss: Tensor, factor: RateFactor) -> Tensor:
        """One gradient step of a part on its loss [R]; returns the largest gradient norm of each member [P].

        A member whose loss or gradient is NaN or infinite stops here and keeps its parameters.
        """
        return self.apply_gradient(name, self.parts[name].parameters.gradient(loss.sum()), loss.detach(), factor)

    def apply_gradient(self, name: str, gradient: Tensor, loss: Tensor, factor: RateFactor) -> Tensor:
        """`gradient_step` with a given gradient [R, W] of the loss [R]."""
        _, optimiser, per = self.parts[name]
        rate = self._rows("learning_rate", per, factor)
        limit = self._rows("max_grad_norm", per)
        with self._decays[name].after_step(optimiser, rate):
            return self._step(name, gradient, loss, rate, limit)

    def _step(self, name: str, gradient: Tensor, loss: Tensor, rate: Tensor, limit: Tensor) -> Tensor:
        """`apply_gradient` without weight decay. rate, limit of the gradient norm: [R]."""
        parameters, optimiser, per = self.parts[name]
        if kernels.is_supported(parameters.flat, gradient, loss):
            state = (parameters.flat, optimiser.first, optimiser.second, optimiser.steps)
            norm = kernels.adam_clipped(state, gradient, rate, limit, loss, self.alive, CONSTANTS)
            return norm.view(self.members, per).amax(1) if per > 1 else norm
        gradient, norm = clip_by_member(gradient, limit)
        total = norm + loss
        # On a CPU checking one sum is cheap; on a GPU reading it would force a synchronisation.
        if on_device(self.device) or not math.isfinite(float(total.sum())):
            self.alive = self.alive & torch.isfinite(total).view(self.members, per).all(1)
        optimiser.step(parameters.flat, gradient, rate, self._active(per))
        return norm.view(self.members, per).amax(1) if per > 1 else norm

    def polyak_update(self) -> None:
        """Polyak update of every target network, by the setting tau."""
        for name, target in self.targets.items():
            per = self.parts[name].per
            target.polyak_update(self._rows("tau", per), self._active(per))

    def _rows(self, name: str, per: int, factor: RateFactor = 1.0) -> Tensor:
        """A setting times a factor, repeated for each of the `per` rows of a member: [R].

        Read from the settings at every step, because a callback may change them.
        """
        value = self._settings[name] * factor
        return value.repeat_interleave(per) if per > 1 else value

    def _active(self, per: int) -> Tensor | None:
        """Rows of living members, None for all (checked on a CPU only, where it needs no synchronisation)."""
        if not on_device(self.device) and bool(self.alive.all()):
            return None
        return self.alive.repeat_interleave(per) if per > 1 else self.alive

    def member(self, p: int) -> dict[str, Tensor]:
        """Copies of the rows of a member on the CPU: parameters, optimiser state, targets."""
        state: dict[str, Tensor] = {}
        for prefix, name, row in self._rows_of(p):
            parameters, optimiser, _ = self.parts[name]
            state[prefix + "parameters"] = parameters.flat[row].cpu().clone()
            state |= {prefix + key: value for key, value in optimiser.member(row).items()}
            if name in self.targets:
                state[prefix + "target"] = self.targets[name].flat[row].cpu().clone()
        return state

    @torch.no_grad()
    def load(self, p: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite a member. Raises RunError, changing nothing, if number or size of the parts differ."""
        for name, (parameters, _, per) in self.parts.items():
            size = parameters.flat.shape[1]
            rows = [state.get(f"{name}.{i}.parameters") for i in range(per)]
            if any(row is None or len(row) != size for row in rows) or f"{name}.{per}.parameters" in state:
                raise RunError(
                    f"the saved agent does not fit: its {name} must be {per} x {size} numbers; "
                    "use the settings it was trained with"
                )
        for prefix, name, row in self._rows_of(p):
            parameters, optimiser, _ = self.parts[name]
            parameters.flat[row].copy_(state[prefix + "parameters"])
            optimiser.load(row, {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)})
            if name in self.targets:
                self.targets[name].flat[row].copy_(state[prefix + "target"])

    def _rows_of(self, p: int) -> list[tuple[str, str, int]]:
        """Prefix of the saved names, part, and row of each network of a member."""
        parts = self.parts.items()
        return [(f"{name}.{i}.", name, p * part.per + i) for name, part in parts for i in range(part.per)]

"""Networks of an algorithm with their optimisers and target networks, for P members.

A member may have several rows of a part, such as its critics; all rows of all members are one batched tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from finrl_pod.errors import RunError
from finrl_pod.native.device import on_device
from finrl_pod.rl.native import kernels
from finrl_pod.rl.optimisation.optimiser import CONSTANTS, Adam, Parameters, WeightDecay, clip_by_member
from finrl_pod.types import Tensor

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
        self,
        settings: Mapping[str, Tensor],
        alive: Tensor,
        weight_decay: float = 0.0,
        *,
        is_anchored: bool = False,
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
        """Detached parameters of a part: name -> [R, ...]."""
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

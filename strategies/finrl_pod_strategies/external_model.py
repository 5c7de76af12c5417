"""A model of another library, such as Stable-Baselines3, as a strategy.

It observes what the Gymnasium views of the market show (`finrl_pod_envs.gym`), and its actions mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.mandate import active_mandate
from finrl_pod.rl.networks.observation_adapter import OBSERVATION_BOUND, action_scale
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Normaliser, Tensor
from finrl_pod_strategies.policy import MemberGroup, PolicyStrategy


class Model(Protocol):
    """What decides: the methods of a trained model of Stable-Baselines3 that are used."""

    def predict(self, observation: Any, *, deterministic: bool) -> tuple[Any, Any]:
        """Action [D] and a state, which is not kept, for one observation [1 + N + X + N * F]."""
        ...


class ModelStrategy(PolicyStrategy):
    """Target weights of a model with `predict(observation, deterministic=True)`.

    A model that normalises observations by running statistics (VecNormalize) must do so in its `predict`; recurrent
    models start afresh at each bar.
    """

    def __init__(
        self,
        model: Model,
        normaliser: Normaliser,
        rules: EnvironmentConfig,
        mandate: MandateConfig,
        spec: PolicySpec,
        data_sha256: str,
        name: str = "",
    ) -> None:
        """normaliser, rules, mandate, data_sha256: of the market that the model was trained on. spec: kind and size of
        its actions, and its number of assets. name: by default the model's class.
        """
        # Without weights of its own: the dtype of the observations is taken from here.
        group = MemberGroup(_ModelActor(model, spec), {"dtype": torch.empty(0)}, [0])
        self._set_up(
            name or type(model).__name__, "mean", [group], np.ones(1), rules, active_mandate(mandate), normaliser
        )
        self.data_sha256 = data_sha256
        self._model = model

    def weights(self) -> list[Mapping[str, Tensor]]:
        """The tensors of the model's `policy`, a torch module, by name. Raises TypeError for a model without one."""
        policy = getattr(self._model, "policy", None)
        if not isinstance(policy, torch.nn.Module):
            raise TypeError(f"the weights of {type(self._model).__name__} are not known")
        return [policy.state_dict()]


class _ModelActor:
    """The decisions of a model as an actor of one account."""

    def __init__(self, model: Model, spec: PolicySpec) -> None:
        self.model, self.spec = model, spec
        self._scale = action_scale(spec.action)

    def action(
        self,
        params: Mapping[str, Tensor],  # noqa: ARG002  the model has its own
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  the views do not show it
    ) -> Tensor:
        """Actions [1, 1, 1, D] as the environment takes them. features: [1, 1, N, F]; account: [1, 1, 1, own]."""
        row = torch.cat([account.flatten(), features.flatten()]).clamp(-OBSERVATION_BOUND, OBSERVATION_BOUND).numpy()
        chosen = np.asarray(self.model.predict(row, deterministic=True)[0])
        size = 1 if self.spec.action == "discrete" else self.spec.action_size
        if chosen.size != size or not np.isfinite(chosen).all():
            raise InputError(
                f"predict() of {type(self.model).__name__} must return {size} finite action{'s' * (size != 1)} for an "
                f"observation of shape {row.shape}, got {chosen!r:.80}"
            )
        if self.spec.action == "discrete":
            return torch.from_numpy(chosen.astype(np.int64)).view(1, 1, 1, 1)
        scaled = chosen.astype(np.float32).clip(-1.0, 1.0) * np.float32(self._scale)
        return torch.from_numpy(scaled).view(1, 1, 1, size)

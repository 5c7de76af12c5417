"""Trained agents of a finished run of `train --env`, read from its folder.

agents = load_agents("runs/hopper")
action = agents.act(torch.zeros(1, 8, agents.spec.features))  # one member, 8 observations
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from finrl_pod.errors import RunError
from finrl_pod.files import other_folder
from finrl_pod.rl.acting.actor import Actor
from finrl_pod.rl.algorithms.factory import make_actor
from finrl_pod.rl.networks.observation_adapter import spec_of
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.normalisation import MEAN, VARIANCE
from finrl_pod.tournament.snapshots import load_tensors
from finrl_pod.types import Tensor
from finrl_pod_app.environment_training.config import TrainingConfig, open_env
from finrl_pod_app.environment_training.folder import CONFIG, WEIGHTS, RunFolder


@dataclass(frozen=True, eq=False)
class SavedAgents:
    """The P members of a run. weights: name -> [P, ...] on the CPU; spec: sizes of observations S and actions D."""

    config: TrainingConfig
    spec: PolicySpec
    actor: Actor
    weights: Mapping[str, Tensor]

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Actions [P, E, D] in [-1, 1], or choices [P, E, 1], without exploration, of flat rows [P, E, S].

        Each member acts on its own rows. Raises RuntimeError for other shapes.
        """
        members = self.config.members
        rows = observation.to(network_dtype(self.weights)).reshape(members, 1, -1, self.spec.features)
        table = rows.new_zeros(members, 1, 0, 0)  # no features: there are no assets
        action = self.actor.action(self.weights, table, rows, None)
        return action.reshape(members, rows.shape[2], -1)

    def member(self, p: int) -> SavedAgents:
        """One member by itself. Raises RunError for a number that the run does not have."""
        if not 0 <= p < self.config.members:
            raise RunError(f"the run has the members 0 to {self.config.members - 1}, got {p}")
        weights = {name: x[p : p + 1] for name, x in self.weights.items()}
        return SavedAgents(dataclasses.replace(self.config, members=1), self.spec, self.actor, weights)


def load_agents(run: str | Path) -> SavedAgents:
    """The agents of a run folder. The environment is made once to learn its sizes.

    Raises RunError for a folder without a finished run of `train --env`, or whose weights do not fit the environment,
    ConfigError, InputError or SetupError for an environment that cannot be made.
    """
    path = Path(run)
    if not (path / CONFIG).exists():
        raise RunError(other_folder(path) or f"{path} holds no run of train --env; name the folder given as --out")
    config = RunFolder(path).config()
    if not (path / WEIGHTS).exists():
        raise RunError(f"the run in {path} is not finished; continue it with the command that began it and --resume")
    tensors = load_tensors(path / WEIGHTS)
    names = [name.removeprefix("0.") for name in tensors if name.startswith("0.")]
    weights = {name: torch.stack([tensors[f"{p}.{name}"] for p in range(config.members)]) for name in names}
    with contextlib.closing(open_env(config.env, envs=1, members=range(config.members))) as env:
        spec = spec_of(env, config.agent)
    agents = SavedAgents(config, spec, make_actor(config.agent.algorithm, spec), weights)
    try:
        agents.act(torch.zeros(config.members, 1, spec.features))
    except (RuntimeError, KeyError):
        raise RunError(
            f"the weights in {path / WEIGHTS} do not fit {config.env} with {spec.features} observations and "
            f"{spec.action_size} actions; restore the environment that the run was made with"
        ) from None
    return agents


def network_dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    """Type of the inputs of a network: the type of its weights, not of the statistics saved with them."""
    return next(x.dtype for name, x in weights.items() if name not in (MEAN, VARIANCE))

"""Training on environments without a market from Python: the run of `finrl-pod train --env`, and its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from finrl_pod.arguments import check_arguments
from finrl_pod.errors import InputError, RunError, shown
from finrl_pod.rl.training.learner import Callback
from finrl_pod.settings.run import MAX_SEED
from finrl_pod.settings.toml import value_text
from finrl_pod.tournament.progress import Progress
from finrl_pod.types import Tensor
from finrl_pod.user_files import unpinned
from finrl_pod_app.api.setup import whole_number
from finrl_pod_app.api.training import progress_bar, progress_shown
from finrl_pod_app.environment_training.evaluation import EPISODES, EvaluationResult
from finrl_pod_app.environment_training.folder import RunFolder, TrainingResult
from finrl_pod_app.environment_training.row_agents import RowAgents
from finrl_pod_app.environment_training.run_config import training_config
from finrl_pod_app.environment_training.saved_agents import SavedAgents, load_agents
from finrl_pod_app.environment_training.training import train as train_run
from finrl_pod_app.setup.overrides import plain_value

EnvName = Annotated[str, 'a name, such as "gym:Hopper-v5", "my_file.py:MyEnv" or "package.module:MyEnv"']


@dataclass(frozen=True, eq=False)
class EnvAgents:
    """The trained agents of a run on an environment. folder: where they are saved, as by `finrl-pod train --env`."""

    folder: Path
    agents: SavedAgents
    result: TrainingResult

    @torch.no_grad()
    def act(self, observation: ArrayLike) -> Tensor:
        """Actions [members, E, ...] as the environment takes them, without exploration, of observations [E, S].

        The agents of one environment take own observations [agents, E, S]. Raises InputError for another shape.
        """
        module = RowAgents(self.agents)
        rows = torch.as_tensor(np.asarray(observation), dtype=torch.float32)
        shape = [len(self.agents.names) if size == "agents" else size for size in module.input_shape]
        if rows.ndim != len(shape) or any(x not in (size, "E") for x, size in zip(shape, rows.shape, strict=True)):
            text = ", ".join(map(str, shape))
            raise InputError(f"observation must have the shape [{text}], got {list(rows.shape)}")
        actions: Tensor = module(rows)
        return actions

    @check_arguments
    def evaluate(self, episodes: int = 100, *, seed: int | None = None) -> EvaluationResult:
        """Mean return and its deviation on new episodes without exploration. seed: default: that of the run."""
        seed = None if seed is None else whole_number("seed", seed, 0, MAX_SEED)
        return self.agents.evaluate(whole_number("episodes", episodes, 1), seed)

    @check_arguments
    def export(self, folder: str | Path, formats: Sequence[Literal["torch", "onnx"]] = ("torch",)) -> list[Path]:
        """Write the agents for programs without finrl_pod: agent.pt2 (torch.export), agent.onnx, and agent.json."""
        from finrl_pod_app.training.agent_export import export_run

        return export_run(self.folder, Path(folder), formats)

    def __repr__(self) -> str:
        result = self.result
        env = unpinned(result.env)
        return f"EnvAgents({env!r}, {result.algorithm!r}, steps={result.steps:,}, score={result.score})"


@check_arguments
def train_env(
    env: EnvName,
    steps: int,
    out: str | Path,
    *,
    algorithm: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    envs: int | None = None,
    workers: int = 0,
    members: int = 1,
    many: bool = False,
    seed: int = 0,
    resume: bool = False,
    evaluation: int = EPISODES,
    progress: bool | None = None,
    callback: Callback | None = None,
) -> EnvAgents:
    """Train agents on an environment for `steps` steps of each member, save them in `out`, and evaluate them.

    The options and their defaults are those of `finrl-pod train --env`. arguments: options of the environment.
    settings: options of the algorithm. many: train all agents of a PettingZoo or batched environment. resume: continue
    the run in `out`. evaluation: episodes at the end. progress: show a bar; by default on a terminal and in a notebook.
    callback: called with the learner and its metrics after every iteration; returning False stops. Raises InputError or
    ConfigError for invalid arguments, RunError for an unsuitable folder or a failing environment.
    """
    folder = Path(out)
    config = training_config(
        env,
        folder,
        resume=resume,
        algorithm=algorithm,
        settings=_lines("settings", settings),
        steps=whole_number("steps", steps, 1),
        envs=None if envs is None else whole_number("envs", envs, 1),
        workers=whole_number("workers", workers, 0),
        many=many,
        env_args=_lines("arguments", arguments),
        members=whole_number("members", members, 1),
        seed=whole_number("seed", seed, 0, MAX_SEED),
    )
    evaluation = whole_number("evaluation", evaluation, 0)
    with progress_bar(is_visible=progress_shown(progress)) as advance:

        def report(state: Progress) -> None:
            advance(state.samples, state.total_samples, state.detail)

        train_run(config, folder, resume=resume, evaluation=evaluation, progress=report, callback=callback)
    return load_env_agents(folder)


@check_arguments
def load_env_agents(folder: str | Path) -> EnvAgents:
    """The agents of a finished run of `train_env` or `finrl-pod train --env`. Raises RunError for another folder."""
    path = Path(folder)
    agents = load_agents(path)
    result = RunFolder(path).result()
    if result is None:
        raise RunError(f"the run in {path} is not finished; continue it with resume=True")
    return EnvAgents(path, agents, result)


def _lines(name: str, values: Mapping[str, Any] | None) -> list[str]:
    """Values as name=value in TOML notation, as the command line takes them. Raises InputError for other values."""
    lines = []
    for key, value in (values or {}).items():
        plain = plain_value(value)
        try:
            lines.append(f"{key}={value_text(tuple(plain) if isinstance(plain, list) else plain)}")
        except TypeError:
            raise InputError(
                f"{name}: {key} must be a number, text, True, False or a list of them, got {shown(value)}"
            ) from None
    return lines

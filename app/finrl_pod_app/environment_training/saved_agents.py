"""Trained agents of a finished run of `train --env`, read from its folder, and episodes that they play."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.lanes import (
    Flattener,
    Shapes,
    describe_failure,
    episode_seed,
    is_gymnasium,
    make_gymnasium,
    shapes_of,
    to_action,
)
from numpy.typing import NDArray

from finrl_pod.errors import InputError, RunError, SetupError
from finrl_pod.files import other_folder
from finrl_pod.random import key
from finrl_pod.rl.acting import Actor
from finrl_pod.rl.algorithms.factory import make_actor
from finrl_pod.rl.experience import MAX_STEPS
from finrl_pod.rl.networks.inputs import spec_of
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.normalisation import MEAN, VARIANCE
from finrl_pod.tournament.snapshots import load_tensors
from finrl_pod.types import Tensor
from finrl_pod.user_files import unpinned
from finrl_pod_app.environment_training.config import TrainingConfig, env_arguments
from finrl_pod_app.environment_training.environments import acting_env, agent_shapes
from finrl_pod_app.environment_training.evaluation import EvaluationResult, ensemble_decision, evaluate
from finrl_pod_app.environment_training.folder import CONFIG, WEIGHTS, RunFolder

if TYPE_CHECKING:
    import gymnasium

    GymnasiumEnv: TypeAlias = gymnasium.Env[Any, Any]

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
DEFAULT_FPS = 30
MAX_FRAMES = 3_000  # of a picture: 100 seconds at 30 frames a second


@dataclass(frozen=True, eq=False)
class SavedAgents:
    """The P members of a run, or the agents of one market. spec: sizes of observations S and actions D.

    weights: name -> [P, ...] on the CPU. names: agents of one market, else empty. shapes: what the environment
    takes of its agent or of each of many; empty for a class that steps a batch, which takes numbers in [-1, 1].
    """

    config: TrainingConfig
    spec: PolicySpec
    actor: Actor
    weights: Mapping[str, Tensor]
    names: tuple[str, ...] = ()
    shapes: tuple[Shapes, ...] = ()

    @property
    def count(self) -> int:
        """P."""
        return len(next(iter(self.weights.values())))

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Actions [P, E, D] in [-1, 1], or choices [P, E, 1], without exploration, of flat rows [P, E, S].

        Each member acts on its own rows. Raises RuntimeError for other shapes.
        """
        members = self.count
        rows = observation.to(network_dtype(self.weights)).reshape(members, 1, -1, self.spec.features)
        table = rows.new_zeros(members, 1, 0, 0)  # no features: there are no assets
        action = self.actor.action(self.weights, table, rows, None)
        return action.reshape(members, rows.shape[2], -1)

    def evaluate(self, episodes: int, seed: int | None = None) -> EvaluationResult:
        """Returns of new episodes without exploration. seed: default: that of the run. Raises as `evaluate`."""
        config = self.config
        # Networks this small are faster on the CPU.
        config = dataclasses.replace(config, device="cpu", seed=config.seed if seed is None else seed)
        result = evaluate(self.act, config, episodes)
        assert result is not None  # there are episodes
        return result

    def member(self, p: int) -> SavedAgents:
        """One member by itself. Raises RunError for a number that the run does not have."""
        if not 0 <= p < self.count:
            raise RunError(f"the run has the members 0 to {self.count - 1}, got {p}")
        weights = {name: x[p : p + 1] for name, x in self.weights.items()}
        return dataclasses.replace(self, config=dataclasses.replace(self.config, members=1), weights=weights)


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
    count = len(tensors) // max(len(names), 1)
    weights = {name: torch.stack([tensors[f"{p}.{name}"] for p in range(count)]) for name in names}
    with contextlib.closing(acting_env(config, envs=1)) as env:
        spec = spec_of(env, config.agent)
        by_agent = agent_shapes(env)
    agent_names = tuple(by_agent) if config.many is not None else ()
    shapes = tuple(x for x in by_agent.values() if x is not None)
    agents = SavedAgents(config, spec, make_actor(config.agent.algorithm, spec), weights, agent_names, shapes)
    try:
        agents.act(torch.zeros(count, 1, spec.features))
    except (RuntimeError, KeyError):
        raise RunError(
            f"the weights in {path / WEIGHTS} do not fit {unpinned(config.env)} with {spec.features} observations and "
            f"{spec.action_size} actions; restore the environment that the run was made with"
        ) from None
    return agents


def network_dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    """Type of the inputs of a network: the type of its weights, not of the statistics saved with them."""
    return next(x.dtype for name, x in weights.items() if name not in (MEAN, VARIANCE))


class PlayedEpisode(NamedTuple):
    """Sum of rewards and number of steps. ended: False if cut off after `MAX_STEPS`, or the frames of a picture."""

    total: float
    steps: int
    ended: bool


def play(
    agents: SavedAgents,
    *,
    episodes: int = 1,
    seed: int | None = None,
    picture: Path | None = None,
    show: Callable[[str], object] = print,
) -> list[PlayedEpisode]:
    """Play episodes without exploration; several members decide together.

    In a window if the environment and this machine have one, else as text that is passed to `show` if the environment
    can print itself, else unseen. seed: episode seed; default: the seed of the run. picture: file for an animated PNG,
    instead of both. Raises InputError for an environment that is no Gymnasium one or has no such picture, SetupError if
    a package for rendering is missing, RunError if the environment fails.
    """
    import gymnasium

    if picture is not None:
        from PIL import Image  # before the episodes: not all installations have it
    name = agents.config.env
    if agents.config.many is not None or not is_gymnasium(name):
        raise InputError(
            f"play shows Gymnasium environments, got {unpinned(name)}; finrl-pod evaluate tests its agents"
        )
    arguments = env_arguments(agents.config.env_args)
    mode = _render_mode(name, arguments, picture)
    if mode is None:
        show("nothing is drawn here: there is no display; --out FILE.png writes a picture if the environment draws any")
    env = make_gymnasium(name, mode, arguments)
    frames: list[NDArray[np.uint8]] = []
    try:
        stream = key(agents.config.seed if seed is None else seed, 0, "play")
        played_episodes = [_episode(agents, env, episode_seed(stream, i), frames, show) for i in range(episodes)]
        fps = int(env.metadata.get("render_fps") or DEFAULT_FPS)
    except gymnasium.error.DependencyNotInstalled as error:
        raise SetupError(f"{unpinned(name)} cannot be drawn: {error}") from None
    except (RunError, InputError):
        raise
    except BrokenPipeError:  # nobody reads what is shown
        raise
    except Exception as error:
        raise RunError(f"{unpinned(name)} failed: {describe_failure(error)}") from error
    finally:
        env.close()
    if picture is not None:
        first, *others = map(Image.fromarray, frames)
        picture.parent.mkdir(parents=True, exist_ok=True)
        first.save(picture, save_all=True, append_images=others, duration=round(1000 / fps), loop=0)
    return played_episodes


def _episode(
    agents: SavedAgents, env: GymnasiumEnv, seed: int, frames: list[NDArray[np.uint8]], show: Callable[[str], object]
) -> PlayedEpisode:
    members = agents.config.members
    shapes = shapes_of(env, agents.config.env)
    decide = agents.act if members == 1 else ensemble_decision(agents.act, members)
    flatten = Flattener(env.observation_space, agents.config.env)
    observation, _ = env.reset(seed=seed)
    total = 0.0
    step = 0
    is_over = False
    limit = MAX_FRAMES - 1 if env.render_mode == "rgb_array" else MAX_STEPS
    while not is_over and step < limit:
        rows = torch.from_numpy(flatten(observation)).expand(members, 1, -1)
        action = to_action(decide(rows)[0, 0].numpy(), shapes)
        _render(env, frames, show)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        step += 1
        is_over = bool(terminated or truncated)
    _render(env, frames, show)
    return PlayedEpisode(total, step, is_over)


def _render(env: GymnasiumEnv, frames: list[NDArray[np.uint8]], show: Callable[[str], object]) -> None:
    if env.render_mode == "ansi":
        show(str(env.render()))
    elif env.render_mode == "rgb_array":
        if len(frames) == MAX_FRAMES:
            raise InputError(f"the picture would have more than {MAX_FRAMES:,} frames; play fewer episodes")
        frames.append(np.asarray(env.render(), dtype=np.uint8))


def _render_mode(name: str, arguments: Mapping[str, Any], picture: Path | None) -> str | None:
    """Mode to make an environment with; None if it cannot be seen here."""
    probe = make_gymnasium(name, arguments=arguments)
    modes = tuple(probe.metadata.get("render_modes", ()))
    probe.close()
    if picture is not None:
        if "rgb_array" not in modes:
            raise InputError(
                f"{unpinned(name)} draws no pictures (its modes: {', '.join(modes) or 'none'}); leave out --out"
            )
        if picture.suffix != ".png":
            raise InputError(f"--out must end in .png, an animated picture, got {picture}")
        return "rgb_array"
    if "human" in modes and any(os.environ.get(display) for display in DISPLAYS):
        return "human"
    return "ansi" if "ansi" in modes else None

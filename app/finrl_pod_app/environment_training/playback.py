"""Playing episodes of a Gymnasium environment by trained agents: in a window, as text, or as an animated picture."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.lanes import (
    PREFIX,
    Flattener,
    describe_failure,
    episode_seed,
    make_gymnasium,
    shapes_of,
    to_action,
)
from numpy.typing import NDArray

from finrl_pod.errors import InputError, RunError, SetupError
from finrl_pod.files import write_bytes
from finrl_pod.random import key
from finrl_pod.rl.experience.rollout import MAX_STEPS
from finrl_pod_app.environment_training.evaluation import ensemble_decision
from finrl_pod_app.environment_training.saved_agents import SavedAgents

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
DEFAULT_FPS = 30
MAX_FRAMES = 3_000  # of a picture: 100 seconds at 30 frames a second
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB, DEPTH = 2, 8  # colour type and bits per channel in the PNG header


if TYPE_CHECKING:
    import gymnasium

    GymnasiumEnv: TypeAlias = gymnasium.Env[Any, Any]


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

    name = agents.config.env
    if not name.startswith(PREFIX):
        raise InputError(f"play shows Gymnasium environments, got {name}; finrl-pod evaluate tests its agents")
    mode = _render_mode(name, picture)
    if mode is None:
        show("nothing is drawn here: there is no display; --out FILE.png writes a picture if the environment draws any")
    env = make_gymnasium(name, mode)
    frames: list[NDArray[np.uint8]] = []
    try:
        stream = key(agents.config.seed if seed is None else seed, 0, "play")
        played_episodes = [_episode(agents, env, episode_seed(stream, i), frames, show) for i in range(episodes)]
        fps = int(env.metadata.get("render_fps") or DEFAULT_FPS)
    except gymnasium.error.DependencyNotInstalled as error:
        raise SetupError(f"{name} cannot be drawn: {error}") from None
    except (RunError, InputError):
        raise
    except Exception as error:
        raise RunError(f"{name} failed: {describe_failure(error)}") from error
    finally:
        env.close()
    if picture is not None:
        write_bytes(picture, animated_png(frames, fps))
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
        total = total + float(reward)
        step = step + 1
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


def _render_mode(name: str, picture: Path | None) -> str | None:
    """Mode to make an environment with; None if it cannot be seen here."""
    probe = make_gymnasium(name)
    modes = tuple(probe.metadata.get("render_modes", ()))
    probe.close()
    if picture is not None:
        if "rgb_array" not in modes:
            raise InputError(f"{name} draws no pictures (its modes: {', '.join(modes) or 'none'}); leave out --out")
        if picture.suffix != ".png":
            raise InputError(f"--out must end in .png, an animated picture, got {picture}")
        return "rgb_array"
    if "human" in modes and any(os.environ.get(display) for display in DISPLAYS):
        return "human"
    return "ansi" if "ansi" in modes else None


def animated_png(frames: list[NDArray[np.uint8]], fps: int) -> bytes:
    """An animated PNG of frames [H, W, 3] for browsers (PNG specification, third edition, section 11.3.6)."""
    height, width, _ = frames[0].shape
    chunks = [
        PNG_SIGNATURE,
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, DEPTH, RGB, 0, 0, 0)),
        _chunk(b"acTL", struct.pack(">II", len(frames), 0)),  # played without end
    ]
    sequence = 0
    for i, frame in enumerate(frames):
        control = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, fps, 0, 0)
        sequence += 1
        rows = np.concatenate([np.zeros((height, 1), np.uint8), frame.reshape(height, -1)], 1)  # 0: rows as they are
        data = zlib.compress(rows.tobytes(), 6)
        chunks.append(_chunk(b"fcTL", control))
        if i == 0:
            chunks.append(_chunk(b"IDAT", data))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", sequence) + data))
            sequence += 1
    return b"".join([*chunks, _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

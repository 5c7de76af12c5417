"""Returns of whole episodes played without exploration, for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from finrl_pod.errors import RunError
from finrl_pod.native.threads import one_thread
from finrl_pod.protocols import PooledVecEnv, VecEnv
from finrl_pod.types import Tensor

MAX_STEPS = 30_000  # of an episode, more than usual time limits: Gymnasium's longest are those of Atari, 27,000


class EpisodeReturns(NamedTuple):
    """Returns of episodes, [P, E] float64 on the CPU.

    cut: [P, E] bool, of an episode that did not end within `MAX_STEPS`, whose return is of the steps until then.
    """

    returns: Tensor
    cut: Tensor


@torch.no_grad()
@one_thread()
def episode_returns(
    env: VecEnv, act: Callable[[Any], Tensor], seed: int, after_step: Callable[[], None] = lambda: None
) -> EpisodeReturns:
    """Return of the first episode of every environment, which is cut off after `MAX_STEPS`.

    act: observation -> actions [P, E, D]. after_step: called after every step; what it raises is passed on. Raises
    RunError if a worker of the environment is lost.
    """
    observation = env.reset(seed)
    totals = torch.zeros(env.members, env.envs, dtype=torch.float64)
    running = torch.ones(env.members, env.envs, dtype=torch.bool)
    for _ in range(MAX_STEPS):
        step = env.step(act(observation))
        if isinstance(env, PooledVecEnv) and env.worker_restarts:
            raise RunError("a worker was lost during the evaluation")
        after_step()
        totals += torch.where(running, step.reward.cpu().double(), 0.0)
        running &= ~(step.terminated | step.truncated).cpu()
        if not bool(running.any()):
            break
        observation = step.observation
    return EpisodeReturns(totals, running)

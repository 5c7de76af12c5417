"""Steps a second of a market environment under random actions."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from finrl_pod_envs.observation import flat_size

from finrl_pod.memory import keep_freed_memory
from finrl_pod_app.bench.rows import Row, over_runs
from finrl_pod_app.bench.speed import SpeedSettings, make_speed_env, rates

POOL = 16  # action tensors drawn ahead, so that drawing is not measured
SAMPLES_A_RUN, FEWEST_STEPS, MOST_STEPS = 2_000_000, 4, 200  # a run lasts about a second at any size


def env_row(settings: SpeedSettings, device: torch.device) -> Row:
    """Environment steps a second; observation="flat" writes every environment's whole row at each step."""
    settings.check()
    keep_freed_memory()
    env = make_speed_env(settings, device)
    stream = torch.Generator(device).manual_seed(1)
    pool = torch.rand(POOL, env.members, env.envs, env.action_size, generator=stream, device=device) * 2 - 1
    steps = min(max(SAMPLES_A_RUN // settings.envs, FEWEST_STEPS), MOST_STEPS)
    env.reset(0)
    env.reuse_buffers(True)  # as a worker steps it
    shape = (env.members, env.envs, flat_size(env.market))
    rows = torch.empty(shape, device=device) if settings.observation == "flat" else None

    @torch.no_grad()
    def work() -> int:
        for i in range(steps):
            env.step(pool[i % POOL], rows)
        return steps * settings.envs

    values = rates("env_steps", work, settings.runs, device)
    bound = (
        None if rows is None else statistics.median(rates("rows_filled", filling(rows, steps), settings.runs, device))
    )
    config = {
        **settings.plain(),
        "steps_a_run": steps,
        "flat_size": flat_size(env.market),
        "whole_shares": env.config.whole_shares,
        "fill": env.config.fill,
        "accounts": str(env.dtype).removeprefix("torch."),
        # steps/s of a machine that did nothing but write those rows, with one number
        "bound_of_writing": bound,
    }
    return over_runs("env_steps", values, "steps/s", config)


def filling(rows: torch.Tensor, steps: int) -> Callable[[], int]:
    """Work that writes rows [P, E, S] as often as so many steps do."""

    def work() -> int:
        for _ in range(steps):
            rows.fill_(1.0)
        return steps * rows.shape[0] * rows.shape[1]

    return work

"""`train`: one agent on a market by a config, or agents on a Gymnasium environment."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from finrl_pod_app.cli.run import Device, Json, Out, Resume, Seed, folder_of, print_json, run_config


class PipelineMode(StrEnum):
    """Collect and learn in turn, or both at once."""

    sync = "sync"
    asynchronous = "async"


ENV_ONLY = "--env gym:NAME"


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings of a market; or --env, as below.")
    ] = None,
    env: Annotated[str | None, typer.Option(metavar="gym:NAME", help="A Gymnasium environment to train on.")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="With --env: one of `finrl-pod algorithms`; sac, or dqn for choices.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="With --env: steps of a member in all, 100000 unless given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="With --env: processes that step it; this process unless given.")
    ] = None,
    envs: Annotated[int | None, typer.Option(help="With --env: environments of a member; one a worker.")] = None,
    members: Annotated[int | None, typer.Option(help="With --env: agents, trained side by side.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --env: a field of [agent], as batch=128; repeatable."),
    ] = None,
    pipeline: Annotated[
        PipelineMode | None, typer.Option(help="With --env: async collects while it learns; sync repeats exactly.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="With --env: CPU threads of the learner, 1 unless given.")] = None,
    worker_timeout: Annotated[
        float | None, typer.Option(help="With --env: seconds after which a worker counts as hung, 60.")
    ] = None,
    save_every: Annotated[float | None, typer.Option(help="With --env: seconds between two saves, 60.")] = None,
    evaluate: Annotated[
        int | None, typer.Option(min=0, help="With --env: episodes of the evaluation at the end, 10; 0: none.")
    ] = None,
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    device: Annotated[
        Device, typer.Option(help="auto takes a CUDA device where there is one; with --env it stays on the CPU.")
    ] = Device.auto,
    as_json: Json = False,
) -> None:
    """Train one agent on a market (CONFIG.toml, through all generations), or agents on a Gymnasium environment (--env).

    finrl-pod train --env gym:Hopper-v5 --algorithm sac --workers 8 --steps 200000 --seed 1 --out runs/hopper
    """
    from finrl_pod.errors import InputError

    only_env: dict[str, Any] = {
        "--algorithm": algorithm, "--steps": steps, "--workers": workers, "--envs": envs, "--members": members,
        "--set": setting, "--pipeline": pipeline, "--threads": threads, "--worker-timeout": worker_timeout,
        "--save-every": save_every, "--evaluate": evaluate,
    }  # fmt: skip
    if (config is None) == (env is None):
        raise InputError("train takes a config file or --env gym:NAME, one of the two: see finrl-pod train --help")
    if config is not None:
        if extra := [name for name, value in only_env.items() if value is not None]:
            raise InputError(f"{extra[0]} goes with --env; a market's settings stand in the config file")
        _on_market(config, out, seed, resume=resume, device=device, as_json=as_json)
        return
    assert env is not None
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be 1 or more, got {workers}; leave it out to step in this process")
    from finrl_pod_app.cli import console
    from finrl_pod_app.gymnasium_training.config import Order, agent_of, default_algorithm
    from finrl_pod_app.gymnasium_training.evaluation import EPISODES
    from finrl_pod_app.gymnasium_training.overlapped import train_at_once
    from finrl_pod_app.gymnasium_training.training import SAVE_SECONDS
    from finrl_pod_app.gymnasium_training.training import train as run

    steps = 100_000 if steps is None else steps
    envs = envs if envs is not None else workers or 1
    order = Order(
        env=env,
        agent=agent_of(algorithm or default_algorithm(env), setting or (), steps=max(steps, 1), envs=max(envs, 1)),
        steps=steps,
        envs=envs,
        workers=workers or 0,
        members=1 if members is None else members,
        seed=seed or 0,
        threads=1 if threads is None else threads,
        worker_timeout=60.0 if worker_timeout is None else worker_timeout,
        pipeline="sync" if pipeline is None else pipeline.value,
        device="cuda" if device is Device.cuda else "cpu",
    )
    folder = folder_of(out, Path(env.replace(":", "-").replace("/", "-")), resume=resume)
    episodes = EPISODES if evaluate is None else evaluate
    with console.progress_display(quiet=as_json) as progress:
        if order.pipeline == "async":
            if resume:
                raise InputError("--pipeline async does not repeat exactly and is not resumed; begin anew, or use sync")
            result = train_at_once(order, folder, evaluation=episodes, progress=progress)
        else:
            every = SAVE_SECONDS if save_every is None else save_every
            result = run(order, folder, resume=resume, save_seconds=every, evaluation=episodes, progress=progress)
    if as_json:
        print_json(result)
    else:
        console.show_classic(result)


def _on_market(
    config: Path, out: Path | None, seed: int | None, *, resume: bool, device: Device, as_json: bool
) -> None:
    from finrl_pod.settings.run import load

    loaded = load(config)
    single = dataclasses.replace(loaded.tournament, pods=1, inherit=0.0, fresh=0.0, champion=1)
    settings = dataclasses.replace(loaded, tournament=single)
    run_config(settings, folder_of(out, config, resume=resume), seed, resume=resume, device=device, as_json=as_json)

"""`finrl-pod demo`, `tournament` and `train`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finrl_pod_app.cli.options import (
    ConfigFile,
    Device,
    Json,
    OnDevice,
    Out,
    Resume,
    Seed,
    check_exists,
    check_panel,
    print_json,
    print_result,
    run_folder,
    setting_option,
)

if TYPE_CHECKING:
    from finrl_pod.settings.run import RunConfig
    from finrl_pod_app.training.engines import EngineOptions


Engine = Literal["local", "processes", "ray"]


class LoggerKind(StrEnum):
    """Program that shows learning curves."""

    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


Panel = Annotated[str | None, typer.Option(help="Panel of the store instead of the config's.")]
CostBps = Annotated[float | None, setting_option("environment.cost_bps")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the config on its prices and estimate memory and time; write nothing.")
]
NoTest = Annotated[
    bool,
    typer.Option(
        "--no-test",
        help="Leave the test period unseen; results are those on validation. A later --resume without it tests.",
    ),
]


PipelineMode = Literal["sync", "async"]


def demo(
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run every stage within a minute; learns little.")] = False,
    data: Annotated[str | None, typer.Option(help="Panel of the store; default: the built-in sample.")] = None,
    as_json: Json = False,
) -> None:
    """Train on the sample prices and backtest the champion: the whole pipeline, 1 to 3 minutes on two cores."""
    from finrl_pod_app.setup.presets import preset

    settings = preset("quick" if quick else "laptop", data)
    if seed is not None:
        settings = dataclasses.replace(settings, seed=seed)
    _run_tournament(settings, run_folder(out, Path("demo"), resume=resume), resume=resume, as_json=as_json)


def tournament(
    config: ConfigFile,
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    device: OnDevice = "auto",
    engine: Annotated[
        Engine, typer.Option(help="Where pods train: this process, processes of this machine, a Ray cluster.")
    ] = "local",
    shards: Annotated[
        int | None, typer.Option(min=1, help="Processes or actors that train side by side; default: one a device.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Running Ray cluster; default: start one on this machine.")
    ] = None,
    shard_cpus: Annotated[
        float | None, typer.Option(min=0.01, help="With --engine ray: CPUs of a shard; default: 1.")
    ] = None,
    shard_gpus: Annotated[
        float | None, typer.Option(min=0, help="With --engine ray: GPUs of a shard, e.g. 0.25; default: 0.")
    ] = None,
    shard_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without an iteration before a shard is replaced.")
    ] = 600.0,
    replay: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Repeat the run of an events.jsonl, results in its order.")
    ] = None,
    data: Panel = None,
    cost_bps: CostBps = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the config, e.g. tournament.pods=4. Repeatable."),
    ] = None,
    dry_run: DryRun = False,
    no_test: NoTest = False,
    as_json: Json = False,
) -> None:
    """Train a population, pick its champion on the validation period and report its results on the test period."""
    check_exists(replay, "log")
    settings = _with_overrides(config, data, cost_bps, setting, seed)
    if settings.environment.kind != "custom" and not resume:  # a run finds its prices under any name
        check_panel(settings.data.name)
    from finrl_pod_app.training.engines import EngineOptions

    options = EngineOptions(engine, shards, address, shard_cpus, shard_gpus, timeout=shard_timeout, replay=replay)
    if dry_run:
        _show_plan(settings, device, options, as_json=as_json, test=not no_test)
        return
    folder = run_folder(out, config, resume=resume)
    command = _command("tournament", config, data, cost_bps, setting, seed)
    _run_tournament(
        settings,
        folder,
        resume=resume,
        device=device,
        as_json=as_json,
        engine=options,
        test=not no_test,
        command=command,
    )


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Config file of a market; or use --env.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="gym:NAME|FILE.py:CLASS", help="Train on a Gymnasium environment, or on your own."),
    ] = None,
    market: Annotated[
        str | None,
        typer.Option(metavar="execution|competition|making|desk", help="Train agents that trade in one market."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="With --env: algorithm; default: sac, or dqn for discrete actions. With --market: ippo, mappo, maddpg "
            "or league."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="With --env, --market: environment steps of each member; default: 100000.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="With --env gym:NAME: worker processes; default: step in this process.")
    ] = None,
    envs: Annotated[
        int | None,
        typer.Option(help="With --env: environments per member; default: one per worker, 16 of a file."),
    ] = None,
    members: Annotated[int | None, typer.Option(help="With --env: number of agents to train in parallel.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Setting of the config, e.g. environment.delay=2; with --env of [agent], e.g. batch_size=128. "
            "Repeatable.",
        ),
    ] = None,
    pipeline: Annotated[
        PipelineMode | None, typer.Option(help="With --env: async collects while learning; sync is reproducible.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="With --env: CPU threads of the learner; default: 1.")] = None,
    worker_timeout: Annotated[
        float | None, typer.Option(help="With --env: seconds before an unresponsive worker is restarted; default: 60.")
    ] = None,
    save_every: Annotated[float | None, typer.Option(help="With --env: seconds between saves; default: 60.")] = None,
    log: Annotated[
        list[LoggerKind] | None,
        typer.Option(help="With --env: also log learning curves into OUT/logs; wandb stays offline. Repeatable."),
    ] = None,
    evaluate: Annotated[
        int | None, typer.Option(min=0, help="With --env: evaluation episodes at the end; default: 10.")
    ] = None,
    data: Panel = None,
    cost_bps: CostBps = None,
    dry_run: DryRun = False,
    no_test: NoTest = False,
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    device: Annotated[
        Device, typer.Option(help="Training device; auto uses CUDA if available, and the CPU with --env.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Train one agent on a market (CONFIG.toml) or agents on another environment (--env).

    On a market the agent trains through all generations and is then tested like a champion: a look at the test period,
    unless --no-test leaves it unseen.
    """
    from finrl_pod.errors import InputError

    only_env: dict[str, str | float | Sequence[str] | None] = {
        "--algorithm": algorithm, "--steps": steps, "--workers": workers, "--envs": envs, "--members": members,
        "--set": setting, "--pipeline": pipeline, "--threads": threads, "--worker-timeout": worker_timeout,
        "--save-every": save_every, "--evaluate": evaluate, "--log": log or None,
    }  # fmt: skip
    if sum(source is not None for source in (config, env, market)) != 1:
        raise InputError("train takes one of a config file, --env and --market; see finrl-pod train --help")
    only_config = {"--data": data, "--cost-bps": cost_bps, "--dry-run": dry_run or None, "--no-test": no_test or None}
    if config is None and (invalid_options := [name for name, value in only_config.items() if value is not None]):
        raise InputError(f"{invalid_options[0]} is only valid with a config file of a market")
    if market is not None:
        _with_many_agents(market, only_env, out, seed, resume=resume, as_json=as_json)
        return
    if config is not None:
        if extra := [name for name, value in only_env.items() if value is not None and name != "--set"]:
            raise InputError(f"{extra[0]} is only valid with --env; with a config file use --set section.name=value")
        single = _single_agent(_with_overrides(config, data, cost_bps, setting, seed))
        if dry_run:
            from finrl_pod_app.training.engines import LOCAL

            _show_plan(single, device, LOCAL, as_json=as_json, test=not no_test)
            return
        if not no_test:
            typer.echo("training one agent; its test counts as a look at the test period", err=True)
        folder = run_folder(out, config, resume=resume)
        command = _command("train", config, data, cost_bps, setting, seed)
        _run_tournament(
            single, folder, resume=resume, device=device, as_json=as_json, test=not no_test, command=command
        )
        return
    assert env is not None
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}; omit it to step in this process")
    from finrl_pod.user_files import check_file_defines, is_file_reference, stdout_to_stderr

    if is_file_reference(env):
        check_file_defines(env, f"the environment {env}")
    from finrl_pod_app.cli import console
    from finrl_pod_app.environment_training.async_training import train_async
    from finrl_pod_app.environment_training.config import (
        CUSTOM_ENVS,
        TrainingConfig,
        agent_config,
        default_algorithm,
        is_custom,
    )
    from finrl_pod_app.environment_training.evaluation import EPISODES
    from finrl_pod_app.environment_training.training import SAVE_SECONDS
    from finrl_pod_app.environment_training.training import train as run

    steps = 100_000 if steps is None else steps
    if envs is None:
        envs = CUSTOM_ENVS if is_custom(env) else workers or 1
    settings = TrainingConfig(
        env=env,
        agent=agent_config(algorithm or default_algorithm(env), setting or (), steps=max(steps, 1), envs=max(envs, 1)),
        steps=steps,
        envs=envs,
        workers=workers or 0,
        members=1 if members is None else members,
        seed=seed or 0,
        threads=1 if threads is None else threads,
        worker_timeout=60.0 if worker_timeout is None else worker_timeout,
        pipeline=pipeline or "sync",
        device="cuda" if device == "cuda" else "cpu",
    )
    folder = run_folder(out, Path(env.replace(":", "-").replace("/", "-").replace(".py", "")), resume=resume)
    episodes = EPISODES if evaluate is None else evaluate
    with stdout_to_stderr(), console.progress_display(quiet=as_json) as progress:
        if settings.pipeline == "async":
            if resume:
                raise InputError("a run with --pipeline async cannot be resumed; start a new one or use sync")
            if log:
                raise InputError("--log needs --pipeline sync, got async; leave out one of them")
            result = train_async(settings, folder, evaluation=episodes, progress=progress).to_dict()
        else:
            save_interval = SAVE_SECONDS if save_every is None else save_every
            result = run(
                settings, folder, resume=resume, save_seconds=save_interval, evaluation=episodes, progress=progress,
                loggers=[kind.value for kind in log or ()],
            ).to_dict()  # fmt: skip
    print_result(result, console.show_training_result, as_json=as_json)


def _with_many_agents(
    market: str, options: dict[str, Any], out: Path | None, seed: int | None, *, resume: bool, as_json: bool
) -> None:
    """`train --market`: options by name; options of --env alone are refused."""
    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console
    from finrl_pod_app.multi_agent.training import MarketTraining, train_market

    market_options = ("--algorithm", "--steps", "--envs", "--set", "--threads")
    if extra := [name for name, value in options.items() if value is not None and name not in market_options]:
        raise InputError(f"{extra[0]} is not valid with --market; it takes {', '.join(market_options)}")
    if resume:
        raise InputError("a run with --market cannot be resumed; it takes minutes, start it again")
    if options["--threads"] is not None:
        import torch

        torch.set_num_threads(max(1, options["--threads"]))
    training = MarketTraining(
        market, options["--algorithm"], options["--steps"], options["--envs"], options["--set"] or (), seed or 0
    )
    result = train_market(training, run_folder(out, Path(market), resume=False))
    print_result(result, console.show_market_training, as_json=as_json)


def _run_tournament(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: Device = "auto",
    as_json: bool = False,
    engine: EngineOptions | None = None,
    test: bool = True,
    command: Sequence[str] = (),
) -> None:
    """Run the tournament of a config and print its result.

    engine: this process by default. test: also test the champion. command: words of the command that made the run,
    without its folder.
    """
    from finrl_pod.user_files import stdout_to_stderr
    from finrl_pod_app.cli import console
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training import tournaments as training
    from finrl_pod_app.training.engines import LOCAL

    notes: list[str] = []
    with stdout_to_stderr(), console.progress_display(quiet=as_json) as progress:
        result = training.run_tournament(
            config,
            out,
            resume=resume,
            device=device,
            progress=progress,
            engine=engine or LOCAL,
            test=test,
            on_note=notes.append,
        )
    if as_json:
        print_json(result.to_dict() if isinstance(result, RunReport) else result)
    elif not isinstance(result, RunReport):
        console.show_custom_result(result, out)
    elif test:
        console.show_result(result, out)
    else:
        console.show_result(result, None)
        typer.echo(f"Not tested. To test it: {shlex.join([*command, '--resume', '--out', str(out)])}")
    for note in notes:  # below the result: what a refusal prints is one line
        typer.echo(f"note: {note}", err=True)


def _show_plan(config: RunConfig, device: Device, engine: EngineOptions, *, as_json: bool, test: bool) -> None:
    """Check a config and print what its run will take. test: whether the run will look at the test period."""
    from finrl_pod_app.setup.kernels import SECONDS, uncompiled_kernels
    from finrl_pod_app.training.tournaments import plan_tournament

    tournament_plan = plan_tournament(config, device=device, engine=engine)
    plan = tournament_plan.estimate
    if as_json:
        estimate = {name: getattr(plan, name) for name in ("memory_bytes", "mapped_bytes", "samples", "seconds")}
        notes = list(tournament_plan.notes)
        print_json({**estimate, "memory": dict(plan.parts), "look": tournament_plan.look, "notes": notes})
        return
    number, unit = (plan.seconds / 60, "minute") if plan.seconds >= 60 else (plan.seconds, "second")
    duration = max(round(number), 1)
    typer.echo(f"memory: about {plan.memory_bytes / 1e9:.1f} GB")
    for name, size in sorted(plan.parts.items(), key=lambda item: -item[1]):
        if size >= 5e6:
            typer.echo(f"  {name}: {size / 1e9:.2f} GB")
    if plan.mapped_bytes:
        typer.echo(f"on disk, mapped into memory: about {plan.mapped_bytes / 1e9:.1f} GB in the folder of the panels")
    typer.echo(f"training: {plan.samples:,} environment steps")
    compiling = f", and {SECONDS} more for compiling kernels once" if uncompiled_kernels() else ""
    typer.echo(f"time: about {duration} {unit}{'s' * (duration > 1)} on two cores{compiling}")
    if tournament_plan.look is not None and not test:
        typer.echo(f"test period: left unseen (--no-test); testing it would be look {tournament_plan.look}")
    elif tournament_plan.look is not None:
        typer.echo(f"test period: a new champion would be look {tournament_plan.look} at bars that overlap it")
    for note in tournament_plan.notes:
        typer.echo(f"note: {note}", err=True)


def _with_overrides(
    config: Path, data: str | None, cost_bps: float | None, settings: list[str] | None, seed: int | None
) -> RunConfig:
    from finrl_pod.settings.run import load
    from finrl_pod_app.setup.overrides import override_run

    run_config = override_run(load(config), data, cost_bps, settings or ())
    return run_config if seed is None else dataclasses.replace(run_config, seed=seed)


def _single_agent(config: RunConfig) -> RunConfig:
    """The config for the one agent of [agent], whatever its [tournament] and [[cohorts]] say."""
    single = dataclasses.replace(config.tournament, pods=1, exploit_fraction=0.0, reinit_fraction=0.0, champion=1)
    return dataclasses.replace(config, tournament=single, cohorts=())


def _command(
    name: str, config: Path, data: str | None, cost_bps: float | None, settings: list[str] | None, seed: int | None
) -> list[str]:
    """The words of a command on a market with the options that its run depends on."""
    words = ["finrl-pod", name, str(config)]
    for option, value in (("--data", data), ("--cost-bps", cost_bps), ("--seed", seed)):
        words += [] if value is None else [option, f"{value}"]
    for line in settings or ():
        words += ["--set", line]
    return words

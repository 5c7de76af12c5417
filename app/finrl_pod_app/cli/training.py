"""`finrl-pod demo`, `tournament` and `train`."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finrl_pod.errors import count_text
from finrl_pod_app.cli.options import (
    Adjusted,
    AllowRepeatedBars,
    Columns,
    ConfigFile,
    DateFormat,
    Decimal,
    Device,
    DropRepeatedBars,
    IgnoreUnknown,
    Json,
    OnDevice,
    Out,
    Resume,
    Seed,
    Separator,
    Symbol,
    check_exists,
    check_panel,
    echo,
    file_options,
    print_json,
    print_note,
    print_result,
    run_folder,
    setting_option,
)

if TYPE_CHECKING:
    from finrl_pod.data.store import Manifest
    from finrl_pod.settings.run import RunConfig
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training.engines import EngineOptions


Engine = Literal["local", "processes", "ray"]


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


ONLY_CONFIG = ("a config file",)
ONLY_ENV = ("--env",)
WITHOUT_CONFIG = ("--env", "--market")
MODES = {  # what an option of `train` is valid with; others are always
    "data": ONLY_CONFIG, "cost_bps": ONLY_CONFIG, "dry_run": ONLY_CONFIG, "no_test": ONLY_CONFIG,
    "algorithm": WITHOUT_CONFIG, "steps": WITHOUT_CONFIG, "envs": WITHOUT_CONFIG, "threads": WITHOUT_CONFIG,
    "save_every": WITHOUT_CONFIG, "env_arg": ONLY_ENV, "many": ONLY_ENV, "workers": ONLY_ENV, "members": ONLY_ENV,
    "pipeline": ONLY_ENV, "worker_timeout": ONLY_ENV, "log": ONLY_ENV, "evaluate": ONLY_ENV,
}  # fmt: skip


def demo(
    prices: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRICES]",
            help="Your prices: a CSV or Parquet file, a folder with one for each ticker, or a stored panel. Default: "
            "the built-in sample.",
        ),
    ] = None,
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run every stage within a minute; learns little.")] = False,
    data: Annotated[str | None, typer.Option(help="Panel of the store to demonstrate on, test included.")] = None,
    chosen: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="With PRICES: when and how its symbols were chosen; asked for by default."),
    ] = None,
    adjusted: Adjusted = None,
    drop_repeated_bars: DropRepeatedBars = None,
    allow_repeated_bars: AllowRepeatedBars = None,
    symbol: Symbol = None,
    decimal: Decimal = None,
    date_format: DateFormat = None,
    separator: Separator = None,
    columns: Columns = None,
    ignore_unknown: IgnoreUnknown = None,
    as_json: Json = False,
) -> None:
    """Train on the sample prices and backtest the champion: the whole pipeline, 1 to 3 minutes on two cores.

    On prices of your own it stops before the test, and prints the command that spends the first look at it.
    """
    read_options = file_options(locals())
    from finrl_pod.errors import InputError
    from finrl_pod_app.setup.presets import preset

    if read_options and (resume or prices is None or not Path(prices).exists()):
        flag = f"--{next(iter(read_options)).replace('_', '-')}"
        raise InputError(f"{flag} is for a file of prices: finrl-pod demo prices.csv {flag} ...")
    if prices is None:
        if chosen is not None:
            raise InputError("--chosen describes the symbols of your prices: finrl-pod demo prices.csv --chosen TEXT")
        settings = preset("quick" if quick else "laptop", data)
        if seed is not None:
            settings = dataclasses.replace(settings, seed=seed)
        _run_tournament(settings, run_folder(out, Path("demo"), resume=resume), resume=resume, as_json=as_json)
        return
    if data is not None:
        raise InputError(f"--data names other prices than {prices}; leave out one of them")
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training.own_prices import config_to_resume, demo_config, with_chosen, write_demo

    folder = run_folder(out, Path(prices), resume=resume)
    if resume:
        settings = config_to_resume(folder)
    else:
        from finrl_pod.tournament.run_directory import RunDirectory

        RunDirectory.check_new(folder)  # before prices are read
        manifest = _stored(prices, read_options, as_json=as_json)
        settings = with_chosen(demo_config(manifest, quick=quick), _answer(chosen))
        if seed is not None:
            settings = dataclasses.replace(settings, seed=seed)
    report, notes = _trained(settings, folder, resume=resume, quiet=as_json, test=False)
    assert isinstance(report, RunReport)  # the environment is a market
    result = write_demo(report, settings, folder)
    if as_json:
        print_json(result.to_dict())
    else:
        from finrl_pod_app.cli.console import show_demo

        show_demo(result, folder)
    _show_notes(notes)


def _stored(prices: str, read_options: Mapping[str, str | bool], *, as_json: bool) -> Manifest:
    """Import a file or folder of prices, or find a stored panel, and show what it has. read_options: how to read it."""
    from finrl_pod.data.store import Store
    from finrl_pod.errors import InputError, did_you_mean
    from finrl_pod_app.cli.data import show_manifest
    from finrl_pod_app.training.own_prices import store_file

    path = Path(prices)
    if path.exists():
        manifest = store_file(path, **read_options)
    elif not path.suffix and Store().exists(prices):
        manifest = Store().show(prices)
    else:
        raise InputError(f"there is no file, folder or stored panel {prices}{did_you_mean(path)}")
    if not as_json:
        show_manifest(manifest)
    return manifest


def _answer(chosen: str | None) -> str:
    """When and how the symbols were chosen: the option, or the answer on a terminal."""
    if chosen is not None:
        return chosen
    if not sys.stdin.isatty():
        return ""
    reason = "Symbols chosen because they did well, or because they still exist, make every backtest look good."
    echo(reason, err=True)
    return str(typer.prompt("When and how were these symbols chosen?", default="not stated", err=True))


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
    _run_tournament(settings, folder, resume=resume, device=device, as_json=as_json, engine=options, test=not no_test)


def train(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Config file of a market; or use --env.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="gym:NAME|FILE.py:CLASS", help="Train on a Gymnasium environment, or on your own."),
    ] = None,
    env_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With --env: argument of the environment, e.g. size=3. Repeatable."),
    ] = None,
    many: Annotated[
        bool,
        typer.Option("--many", help="With --env FILE.py:CLASS: train all agents of a PettingZoo or batched market."),
    ] = False,
    market: Annotated[
        str | None,
        typer.Option(metavar="execution|competition|making|desk", help="Train agents that trade in one market."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="With --env: algorithm; default: sac, or dqn for discrete actions. With --many: ippo, mappo (default) "
            "or maddpg. With --market: also league."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="With --env, --market: environment steps of each member; default: 100000.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="With --env gym:NAME: worker processes; 0 steps in this process.")
    ] = 0,
    envs: Annotated[
        int | None, typer.Option(help="With --env: environments per member; default: one per worker, 16 of a file.")
    ] = None,
    members: Annotated[int, typer.Option(help="With --env: number of agents to train in parallel.")] = 1,
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
        Literal["sync", "async"], typer.Option(help="With --env: async collects while learning; sync is reproducible.")
    ] = "sync",
    threads: Annotated[int, typer.Option(help="With --env, --market: CPU threads of the learner.")] = 1,
    worker_timeout: Annotated[
        float, typer.Option(help="With --env: seconds before an unresponsive worker is restarted.")
    ] = 60.0,
    save_every: Annotated[float, typer.Option(help="With --env, --market: seconds between saves.")] = 60.0,
    log: Annotated[
        Literal["tensorboard"] | None, typer.Option(help="With --env: also log learning curves into OUT/logs.")
    ] = None,
    evaluate: Annotated[int, typer.Option(min=0, help="With --env: evaluation episodes at the end.")] = 10,
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

    All agents of one environment: finrl-pod train --env auction.py:Auction --many --algorithm mappo --out runs/auction
    """
    from finrl_pod.errors import InputError

    if sum(source is not None for source in (config, env, market)) != 1:
        raise InputError("train takes one of a config file, --env and --market; see finrl-pod train --help")
    mode = "--env" if env is not None else "--market" if market is not None else "a config file"
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and mode not in MODES.get(name, (mode,)):
            way_out = "; set tournament.samples_per_generation and tournament.generations" if name == "steps" else ""
            raise InputError(f"{parameter.opts[0]} is only valid with {' or '.join(MODES[name])}, got {mode}{way_out}")
    if market is not None:
        from finrl_pod_app.cli import console
        from finrl_pod_app.multi_agent.training import MarketTraining, train_market

        market_training = MarketTraining(market, algorithm, steps, envs, setting or (), seed or 0, threads)
        folder = run_folder(out, Path(market), resume=resume)
        with console.progress_display(quiet=as_json) as progress:
            scored = train_market(market_training, folder, resume=resume, save_seconds=save_every, progress=progress)
        print_result(scored.to_dict(), console.show_market_training, as_json=as_json)
    elif config is not None:
        run_config = _with_overrides(config, data, cost_bps, setting, seed)
        # One agent, whatever [tournament] and [[cohorts]] say.
        one = dataclasses.replace(run_config.tournament, pods=1, exploit_fraction=0.0, reinit_fraction=0.0, champion=1)
        single = dataclasses.replace(run_config, tournament=one, cohorts=())
        if dry_run:
            from finrl_pod_app.training.engines import LOCAL

            _show_plan(single, device, LOCAL, as_json=as_json, test=not no_test)
            return
        if not no_test:
            echo("training one agent; its test counts as a look at the test period", err=True)
        folder = run_folder(out, config, resume=resume)
        _run_tournament(single, folder, resume=resume, device=device, as_json=as_json, test=not no_test)
    elif env is not None:
        if pipeline == "async" and (resume or log or many):
            option = "--resume" if resume else "--log" if log else "--many"
            raise InputError(f"{option} needs --pipeline sync, got async; leave out one of them")
        from finrl_pod.user_files import check_file_defines, is_file_reference, stdout_to_stderr

        if is_file_reference(env):
            check_file_defines(env, f"the environment {env}")  # before the imports
        from finrl_pod_app.cli import console
        from finrl_pod_app.environment_training import training
        from finrl_pod_app.environment_training.run_config import training_config

        folder_name = Path(env.replace(":", "-").replace("/", "-").replace(".py", ""))
        folder = run_folder(out, folder_name, resume=resume)
        options: dict[str, Any] = {} if steps is None else {"steps": steps}
        config_of_run = training_config(
            env,
            folder,
            resume=resume,
            algorithm=algorithm,
            settings=setting or (),
            envs=envs,
            workers=workers,
            many=many,
            env_args=env_arg or (),
            members=members,
            seed=seed or 0,
            threads=threads,
            worker_timeout=worker_timeout,
            pipeline=pipeline,
            device="cuda" if device == "cuda" else "cpu",
            **options,
        )
        with stdout_to_stderr(), console.progress_display(quiet=as_json) as progress:
            if pipeline == "async":
                result = training.train_async(config_of_run, folder, evaluation=evaluate, progress=progress)
            else:
                result = training.train(
                    config_of_run,
                    folder,
                    resume=resume,
                    save_seconds=save_every,
                    evaluation=evaluate,
                    progress=progress,
                    logger=log,
                )
        print_result(result.to_dict(), console.show_training_result, as_json=as_json)


def _run_tournament(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: Device = "auto",
    as_json: bool = False,
    engine: EngineOptions | None = None,
    test: bool = True,
) -> None:
    """Run the tournament of a config and print its result. engine: default this process. test: test the champion."""
    from finrl_pod_app.cli import console
    from finrl_pod_app.report.records import RunReport

    result, notes = _trained(config, out, resume=resume, quiet=as_json, test=test, device=device, engine=engine)
    if as_json:
        print_json(result.to_dict() if isinstance(result, RunReport) else result)
    elif not isinstance(result, RunReport):
        console.show_custom_result(result, out)
    else:
        console.show_result(result, out)
        if not test:
            echo(f"Not tested. To test it, repeat the command with --resume --out {out} and without --no-test.")
    _show_notes(notes)


def _trained(
    config: RunConfig,
    out: Path,
    *,
    resume: bool,
    quiet: bool,
    test: bool,
    device: Device = "auto",
    engine: EngineOptions | None = None,
) -> tuple[RunReport | dict[str, Any], list[str]]:
    """The result of a tournament, and its notes. quiet: show no progress."""
    from finrl_pod.user_files import stdout_to_stderr
    from finrl_pod_app.cli import console
    from finrl_pod_app.training import tournaments as training
    from finrl_pod_app.training.engines import LOCAL

    notes: list[str] = []
    gc.freeze()  # every stage collects garbage: it need not search all that was imported
    with stdout_to_stderr(), console.progress_display(quiet=quiet) as progress:
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
    return result, notes


def _show_notes(notes: list[str]) -> None:
    for note in notes:  # below the result: what a refusal prints is one line
        print_note(note)


def _show_plan(config: RunConfig, device: Device, engine: EngineOptions, *, as_json: bool, test: bool) -> None:
    """Check a config and print what its run will take. test: whether the run will look at the test period."""
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
    echo(f"memory: about {plan.memory_bytes / 1e9:.1f} GB")
    for name, size in sorted(plan.parts.items(), key=lambda item: -item[1]):
        if size >= 5e6:
            echo(f"  {name}: {size / 1e9:.2f} GB")
    if plan.mapped_bytes:
        echo(f"on disk, mapped into memory: about {plan.mapped_bytes / 1e9:.1f} GB in the folder of the panels")
    echo(f"training: {plan.samples:,} environment steps")
    echo(f"time: about {count_text(duration, unit)} on two cores")
    if tournament_plan.look is not None and not test:
        echo(f"test period: left unseen (--no-test); testing it would be look {tournament_plan.look}")
    elif tournament_plan.look is not None:
        echo(f"test period: a new champion would be look {tournament_plan.look} at bars that overlap it")
    for note in tournament_plan.notes:
        print_note(note)


def _with_overrides(
    config: Path, data: str | None, cost_bps: float | None, settings: list[str] | None, seed: int | None
) -> RunConfig:
    from finrl_pod.settings.run import load
    from finrl_pod_app.setup.overrides import override_run

    run_config = override_run(load(config), data, cost_bps, settings or ())
    return run_config if seed is None else dataclasses.replace(run_config, seed=seed)

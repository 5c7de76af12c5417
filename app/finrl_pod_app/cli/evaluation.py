"""Commands `audit`, `promote`, `trials`, `walkforward`, and `evaluate`, `play` and `export` of trained agents."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from finrl_pod.user_files import unpinned
from finrl_pod_app.cli.options import (
    ConfigFile,
    Json,
    OnDevice,
    Out,
    Resume,
    check_panel,
    check_run_folder,
    print_json,
    print_result,
    run_folder,
    run_or_strategy,
)

REFUSED = 1
SHOWN_LOOKS = 5  # of each data set


def audit(
    run_dir: Annotated[Path | None, typer.Argument(metavar="[RUN_DIR]", help="Run whose champion is audited.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Baseline by name, or file.py:Class (runs as trusted code), instead of a run.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment: portfolio or stock_trading.")] = None,
    data: Annotated[str | None, typer.Option(help="Stored panel for --strategy and --env; default: sample.")] = None,
    probes: Annotated[
        int, typer.Option(min=1, help="Random bars after which later prices are changed; bars of events come on top.")
    ] = 300,
    warm_up: Annotated[int, typer.Option(min=1, help="Bars of history that decisions may depend on.")] = 756,
    as_json: Json = False,
) -> None:
    """Check for look-ahead, leakage between splits, wrong fills and flawed data. Exits with 1 if a check fails."""
    from finrl_pod_strategies import check_strategy_name

    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_audit

    if sum(subject is not None for subject in (run_dir, strategy, env)) != 1:
        raise InputError("audit needs exactly one of a run directory, --strategy NAME and --env KIND")
    if run_dir is not None and data is not None:
        raise InputError("a run is audited on its own data; leave out --data")
    if run_dir is not None and isinstance(target := run_or_strategy(run_dir), str):
        run_dir = None
        strategy = target
    if strategy is not None:
        check_strategy_name(strategy)
    check_panel(data)
    from finrl_pod_app.evaluation.audit import AuditScope, audit_env, audit_run, audit_strategy

    with console.step_display(quiet=as_json) as on_step:
        scope = AuditScope(probes, warm_up)
        if run_dir is not None:
            result = audit_run(run_dir, scope, on_step=on_step)
        elif strategy is not None:
            result = audit_strategy(strategy, data, scope, on_step=on_step)
        else:
            result = audit_env(str(env), data, scope, on_step=on_step)
    if as_json:
        print_json(result.to_dict())
    else:
        show_audit(result)
    if not result.clean:
        raise typer.Exit(REFUSED)


def promote(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Finished run.")], as_json: Json = False
) -> None:
    """Show whether a run's champion is promoted, rule by rule. Exits with 1 if it is not."""
    check_run_folder(run_dir)
    from finrl_pod.promotion.verdict import read_verdict
    from finrl_pod_app.cli.console_evaluation import show_rules

    verdict = read_verdict(run_dir)
    from finrl_pod_app.report.records import report_of_run

    report = report_of_run(run_dir).with_verdict(verdict)
    if as_json:
        print_json(verdict.to_dict() | report.verdict_context())
    else:
        show_rules(report)
    if not verdict.promoted:
        raise typer.Exit(REFUSED)


def trials(
    data: Annotated[str | None, typer.Option(help="Stored panel; default: all data sets.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all looks, not the last five of each data set; --json has all.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the number of trials on each data set, and every look at a test period."""
    from finrl_pod.data.store import Store
    from finrl_pod.promotion.trial_registry import TrialRegistry
    from finrl_pod_app.cli.console_evaluation import show_trials

    registry = TrialRegistry()
    digest = None if data is None else Store().load(data).sha256
    data_sets = [entry for entry in registry.data_sets() if digest in (None, entry.data_sha256)]
    if as_json:
        print_json({"register": str(registry.path), "data_sets": [dataclasses.asdict(entry) for entry in data_sets]})
    else:
        show_trials(str(registry.path), data_sets, None if every else SHOWN_LOOKS)


def walkforward(
    config: ConfigFile,
    out: Out = None,
    folds: Annotated[int, typer.Option(min=1, help="Number of test periods, each with its own training.")] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per fold, starting from the config's seed.")] = 3,
    resume: Resume = False,
    device: OnDevice = "auto",
    as_json: Json = False,
) -> None:
    """Retrain on each fold and test on the bars that follow; apply the gate to the combined equity curve."""
    from finrl_pod.settings.run import load
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_rules, show_walkforward

    settings = load(config)
    check_panel(settings.data.name)
    from finrl_pod.promotion.verdict import Verdict
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training.walkforward import run_walkforward

    folder = run_folder(out, config, resume=resume)
    with console.progress_display(quiet=as_json) as progress:
        document = run_walkforward(
            settings, folder, folds=folds, seeds=seeds, resume=resume, device=device, progress=progress
        )
    if as_json:
        print_json(document)
        return
    show_walkforward(document)
    show_rules(RunReport().with_verdict(Verdict.from_dict(document["verdict"])))
    typer.echo(f"Report: {folder / 'report.html'}")


def ensemble(
    config: ConfigFile,
    algorithms: Annotated[str, typer.Option(metavar="NAME,NAME", help="Algorithms to train for each quarter.")],
    out: Out = None,
    quarters: Annotated[
        int | None,
        typer.Option(help="Quarters to trade from the start of validation; default: all, to the end of test."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Environment steps of each training.")] = 20_000,
    resume: Resume = False,
    device: OnDevice = "auto",
    as_json: Json = False,
) -> None:
    """Trade each quarter with the algorithm that had the best Sharpe ratio in the quarter before, as FinRL does.

    Beside it: the mean of all algorithms, each one alone, and 100 random choices.
    """
    from finrl_pod.settings.run import load
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_ensemble

    settings = load(config)
    check_panel(settings.data.name)
    from finrl_pod_app.training.quarterly_ensemble import EnsembleOptions, run_ensemble

    names = tuple(name.strip() for name in algorithms.split(",") if name.strip())
    options = EnsembleOptions(names, quarters, samples)
    folder = run_folder(out, config, resume=resume)
    with console.progress_display(quiet=as_json) as progress:
        result = run_ensemble(settings, folder, options, resume=resume, device=device, progress=progress)
    print_result(result, show_ensemble, as_json=as_json)


EnvironmentRun = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a finished run of train --env.")]
Member = Annotated[int | None, typer.Option(min=0, help="One member by number; default: all members decide together.")]
EpisodeSeed = Annotated[int | None, typer.Option(min=0, help="Seed of the episodes; default: the run's.")]


def evaluate(
    run_dir: EnvironmentRun,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each member.")] = 10,
    seed: EpisodeSeed = None,
    as_json: Json = False,
) -> None:
    """Test the agents of a run of train --env on new episodes, without exploration: mean return and its deviation."""
    check_run_folder(run_dir)
    from finrl_pod_app.cli.console import show_environment_evaluation
    from finrl_pod_app.environment_training.saved_agents import load_agents

    agents = load_agents(run_dir)
    config = agents.config
    scores = agents.evaluate(episodes, seed)
    document = {
        "run": str(run_dir),
        "env": unpinned(config.env),
        "algorithm": config.algorithm,
        "agents": list(agents.names) if agents.count == len(agents.names) else [],
        "seed": config.seed if seed is None else seed,
        **scores.to_dict(),
    }
    print_result(document, show_environment_evaluation, as_json=as_json)


def play(
    run_dir: EnvironmentRun,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 1,
    member: Member = None,
    seed: EpisodeSeed = None,
    out: Annotated[Path | None, typer.Option(help="Write an animated picture, FILE.png, in place of a window.")] = None,
    as_json: Json = False,
) -> None:
    """Watch the agents of a run of train --env: in a window, as text, or as a picture for the browser (--out)."""
    check_run_folder(run_dir)
    from finrl_pod_app.environment_training.saved_agents import load_agents
    from finrl_pod_app.environment_training.saved_agents import play as run

    agents = load_agents(run_dir)
    results = run(
        agents if member is None else agents.member(member),
        episodes=episodes,
        seed=seed,
        picture=out,
        show=lambda text: None if as_json else typer.echo(text),
    )
    if as_json:
        rows = [{"return": episode.total, "steps": episode.steps, "ended": episode.ended} for episode in results]
        print_json(
            {"run": str(run_dir), "env": unpinned(agents.config.env), "episodes": rows, "picture": out and str(out)}
        )
        return
    for i, episode in enumerate(results):
        cut = "" if episode.ended else ", cut off before its end"
        typer.echo(f"episode {i}: return {episode.total:.1f} in {episode.steps:,} steps{cut}")
    if out is not None:
        typer.echo(f"Picture: {out}")


def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write into; default: RUN_DIR/export.")] = None,
    format: Annotated[
        Literal["torch", "onnx"], typer.Option(help="torch: agent.pt2, for torch.export.load; onnx: agent.onnx.")
    ] = "torch",
    as_json: Json = False,
) -> None:
    """Write trained agents for programs without finrl_pod: networks with their normalisation, and a description."""
    check_run_folder(run_dir)
    from finrl_pod_app.training.agent_export import export_run

    names = [str(path) for path in export_run(run_dir, out or run_dir / "export", (format,))]
    print_result({"files": names}, f"wrote {', '.join(names)}", as_json=as_json)

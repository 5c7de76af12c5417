"""`finrl-pod evaluate` and `play` of agents of `train --env`; `export` of the agents of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from finrl_pod.user_files import unpinned
from finrl_pod_app.cli.options import Json, check_run_folder, print_json, print_result

ExportFormat = Literal["torch", "onnx", "both"]


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
    import dataclasses

    check_run_folder(run_dir, "train --env")
    from finrl_pod_app.cli.console import show_environment_evaluation
    from finrl_pod_app.environment_training.evaluation import evaluate as run
    from finrl_pod_app.environment_training.saved_agents import load_agents

    agents = load_agents(run_dir)
    config = dataclasses.replace(
        agents.config, device="cpu", seed=agents.config.seed if seed is None else seed
    )  # networks this small are faster there
    scores = run(agents.act, config, episodes)
    assert scores is not None
    document = {
        "run": str(run_dir),
        "env": unpinned(config.env),
        "algorithm": unpinned(config.agent.algorithm),
        "seed": config.seed,
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
    check_run_folder(run_dir, "train --env")
    from finrl_pod_app.environment_training.playback import play as run
    from finrl_pod_app.environment_training.saved_agents import load_agents

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
        ExportFormat, typer.Option(help="torch: agent.pt2, for torch.export.load; onnx: agent.onnx.")
    ] = "torch",
    as_json: Json = False,
) -> None:
    """Write trained agents for programs without finrl_pod: networks with their normalisation, and a description."""
    check_run_folder(run_dir)
    from finrl_pod_app.training.agent_export import Format, export_run

    formats: tuple[Format, ...] = ("torch", "onnx") if format == "both" else (format,)
    files = export_run(run_dir, out or run_dir / "export", formats)
    names = [str(path) for path in files]
    print_result({"files": names}, f"wrote {', '.join(names)}", as_json=as_json)

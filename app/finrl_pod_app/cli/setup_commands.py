"""`finrl-pod init`, `algorithms` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from finrl_pod_app.cli.options import Json, print_json, print_result

COMPLETE = "_FINRL_POD_COMPLETE"  # variable by which the script of the shell asks for completions


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Where to write; never overwrites a file.")],
    preset: Annotated[str, typer.Option(help="laptop, gpu, quick (a trial run), minutes (bars of 1m).")] = "laptop",
    data: Annotated[str | None, typer.Option(help="Panel of the store; default: the built-in sample.")] = None,
    env: Annotated[
        str | None, typer.Option(metavar="FILE.py:CLASS", help="Instead of a market: an environment of your own.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="With --env: default ppo.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write all settings, also those with their defaults.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented config file with the settings that are changed first; --full writes all."""
    from finrl_pod.errors import InputError
    from finrl_pod_app.setup.presets import few_test_bars, tournament_command, write_config, write_preset

    if env is None:
        if algorithm is not None:
            raise InputError("--algorithm is only valid with --env; set agent.algorithm in the file")
        write_preset(preset, file, data, full=full)
    else:
        if full:
            raise InputError("--full is only valid without --env; docs/configuration.md lists all settings")
        from finrl_pod_app.training.custom_tournament import custom_config_text

        write_config(custom_config_text(env, algorithm or "ppo", file), file)
    command = tournament_command(file)
    document = {"file": str(file), "preset": None if env else preset, "env": env, "data": data, "run": command}
    print_result(document, f"wrote {file}: run it with {command}", as_json=as_json)
    if data is not None and env is None and (note := few_test_bars(file)):
        typer.echo(f"note: {note}", err=True)


Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print the script that completes commands and options in a shell.

    bash: finrl-pod completion bash >> ~/.bashrc. zsh: save it as _finrl-pod in a folder of $fpath. fish: finrl-pod
    completion fish > ~/.config/fish/completions/finrl-pod.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="finrl-pod", complete_var=COMPLETE, shell=shell))


def glossary(
    word: Annotated[str | None, typer.Argument(metavar="[WORD]", help="Part of a word; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Explain the words of verdicts, reports and commands."""
    from finrl_pod_app.setup.glossary import meanings

    meaning_by_word = meanings(word)
    text = "\n".join(f"{name}: {meaning}" for name, meaning in meaning_by_word.items())
    print_result({"words": meaning_by_word}, text, as_json=as_json)


def algorithms(as_json: Json = False) -> None:
    """List the algorithms with their kind, supported actions and source."""
    import dataclasses

    from finrl_pod.settings.algorithm_registry import ALGORITHMS

    if as_json:
        rows = []
        for algorithm in ALGORITHMS.values():
            row = {name: value for name, value in vars(algorithm).items() if name != "config_class"}
            defaults = algorithm.config_class(algorithm=algorithm.name)
            row["settings"] = {k: v for k, v in dataclasses.asdict(defaults).items() if k != "algorithm"}
            rows.append(row)
        print_json({"algorithms": rows})
        return
    from finrl_pod_app.cli.console import make_console, plain_table

    columns = ("algorithm", "kind", "actions", "description", "source")
    table = plain_table(columns=columns, multiline=columns[3:], collapse_padding=True)
    for algorithm in ALGORITHMS.values():
        table.add_row(algorithm.name, algorithm.kind, algorithm.actions, algorithm.summary, algorithm.source)
    make_console().print(table)


def doctor(as_json: Json = False) -> None:
    """Check the installation and suggest fixes."""
    import dataclasses

    from finrl_pod_app.setup.doctor import check_installation

    findings = check_installation()
    works = all(finding.status != "broken" for finding in findings)
    if as_json:
        print_json({"works": works, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        from finrl_pod_app.cli.console import show_findings

        show_findings(findings)
    if not works:
        raise typer.Exit(1)

"""`finrl-pod registry` and `retrain`: stored champions and agents, and which champion each strategy trades."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finrl_pod.errors import count_text
from finrl_pod_app.cli.options import (
    ConfigFile,
    Json,
    OnDevice,
    Out,
    Resume,
    check_panel,
    check_run_folder,
    print_note,
    print_result,
    run_folder,
)

if TYPE_CHECKING:
    from finrl_pod.registry.agent_registry import AgentRegistry

REFUSED = 1  # exit code

app = typer.Typer(help="Stored champions and agents; which champion each strategy trades.", no_args_is_help=True)

Address = Annotated[
    str,
    typer.Option(
        "--registry",
        metavar="ADDRESS",
        help="Folder or URL such as s3://bucket/agents. Default: FINRL_POD_REGISTRY, else the user's data folder.",
    ),
]
Entry = Annotated[
    str, typer.Argument(metavar="ENTRY", help="Address of a champion or an agent, or its first characters.")
]


@app.command("list", epilog="Example: finrl-pod registry list --json")
def list_entries(registry: Address = "", as_json: Json = False) -> None:
    """List the stored champions, and the champion that each strategy trades."""
    from finrl_pod_app.cli.console_evaluation import show_registry
    from finrl_pod_app.training.registry import list_registry

    print_result(list_registry(_open(registry)), show_registry, as_json=as_json)


@app.command("show", epilog="Example: finrl-pod registry show 3f9c2a")
def show(
    entry: Annotated[
        str,
        typer.Argument(metavar="ENTRY", help="Address of a champion or an agent, its beginning, or a strategy's name."),
    ],
    registry: Address = "",
    as_json: Json = False,
) -> None:
    """Show a champion, an agent with its ancestors, or the changes of a strategy."""
    from finrl_pod_app.cli.console_evaluation import show_details
    from finrl_pod_app.training.registry import show_entry

    print_result(show_entry(_open(registry), entry), show_details, as_json=as_json)


@app.command("push", epilog="Example: finrl-pod registry push runs/mine --strategy main")
def push(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Finished run.")],
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="Also hand the champion over to this strategy, if it is promoted.")
    ] = "",
    registry: Address = "",
    as_json: Json = False,
) -> None:
    """Store the champion of a run. Exits with 1 if it was to be handed over and is not promoted."""
    check_run_folder(run_dir)
    from finrl_pod.registry.handover import check_strategy_name, hand_over

    if strategy:
        check_strategy_name(strategy)
    store = _open(registry)
    champion = store.push(run_dir)
    is_handed_over = bool(strategy) and champion.promoted
    if is_handed_over:
        hand_over(store, strategy, champion)
    document = {"champion": champion.address, "promoted": champion.promoted, "strategy": strategy or None,
                "handed_over": is_handed_over}  # fmt: skip
    text = f"stored champion {champion.address[:12]} of {run_dir} in {store.store.address}"
    if strategy:
        text += f"\nhanded over to strategy {strategy}" if is_handed_over else "\nnot promoted, so not handed over"
    print_result(document, text, as_json=as_json)
    if strategy and not is_handed_over:
        raise typer.Exit(REFUSED)


@app.command("pull", epilog="Example: finrl-pod registry pull 3f9c2a --out runs/pulled")
def pull(
    entry: Entry,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder to write to.")],
    registry: Address = "",
    as_json: Json = False,
) -> None:
    """Write a champion as a run folder that all commands read, or an agent's two files. Hashes are verified."""
    from finrl_pod.registry.records import Champion
    from finrl_pod_app.training.registry import find

    store = _open(registry)
    stored_entry = find(store, entry)
    if isinstance(stored_entry, Champion):
        address = stored_entry.address
        store.pull(stored_entry, out)
    else:
        address = stored_entry[0].address
        store.pull_agent(*stored_entry, out)
    print_result({"address": address, "out": str(out)}, f"wrote {address[:12]} to {out}", as_json=as_json)


@app.command("gc", epilog="Example: finrl-pod registry gc --refused --dry-run")
def collect(
    refused: Annotated[bool, typer.Option("--refused", help="Also remove champions that the gate refused.")] = False,
    min_age: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Keep files younger than this: they may be of a running push.")
    ] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    registry: Address = "",
    as_json: Json = False,
) -> None:
    """Remove files that no champion refers to. Champions that a strategy trades or can return to always stay."""
    from datetime import timedelta

    from finrl_pod.registry.handover import collect_garbage

    garbage = collect_garbage(
        _open(registry), min_age=timedelta(hours=min_age), include_refused=refused, dry_run=dry_run
    )
    document = {"champions": garbage.champions, "files": garbage.files, "kept": garbage.kept, "dry_run": dry_run}
    verb = "would remove" if dry_run else "removed"
    removed = f"{count_text(len(garbage.champions), 'champion')} and {count_text(len(garbage.files), 'file')}"
    text = f"{verb} {removed}; champions that remain: {garbage.kept:,}"
    print_result(document, text, as_json=as_json)


def retrain(
    config: ConfigFile,
    strategy: Annotated[
        str,
        typer.Option(metavar="NAME", help="Strategy that gets a promoted champion. Default: the config's file name."),
    ] = "",
    out: Out = None,
    registry: Address = "",
    stored: Annotated[bool, typer.Option("--stored", help="Train on the stored prices, without newer ones.")] = False,
    resume: Resume = False,
    device: OnDevice = "auto",
    as_json: Json = False,
) -> None:
    """Fetch newer prices, train, and hand the champion over to the paper daemon if the gate promotes it.

    Prices continue as by `data update`, and the splits move to their end. A refused champion changes nothing; the exit
    code is then 1.
    """
    from finrl_pod.settings.run import load
    from finrl_pod_app.cli import console

    settings = load(config)
    folder = run_folder(out, config, resume=resume)
    check_panel(settings.data.name)
    from finrl_pod_app.training.registry import retrain as run

    notes: list[str] = []
    with console.progress_display(quiet=as_json) as progress:
        document = run(
            settings,
            strategy or config.stem,
            folder,
            _open(registry),
            use_stored=stored,
            resume=resume,
            device=device,
            progress=progress,
            on_note=notes.append,
        )
    for note in notes:
        print_note(note)
    if document["handed_over"]:
        text = f"champion {document['champion'][:12]} was handed over to strategy {document['strategy']}"
    else:
        text = f"not handed over to strategy {document['strategy']}, and it keeps its champion:"
        text = "\n- ".join([text, *document["reasons"]])
    print_result(document, text, as_json=as_json)
    if not document["handed_over"]:
        raise typer.Exit(REFUSED)


def _open(address: str) -> AgentRegistry:
    from finrl_pod.registry.agent_registry import AgentRegistry

    return AgentRegistry(address)

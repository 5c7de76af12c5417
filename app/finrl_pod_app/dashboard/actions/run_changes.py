"""Files that visitors add to the folder of a run: tags, and a config for paper trading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from finrl_pod.errors import InputError, RunError
from finrl_pod.files import write_json, write_text
from finrl_pod.settings.run import RunConfig
from finrl_pod_app.dashboard.queries.runs import TAGS, RunFiles, is_file, open_run
from finrl_pod_app.dashboard.settings import Settings

FILE = "paper.toml"


def paper_config(run: RunFiles, config: RunConfig, *, is_promoted: bool) -> str:
    """Config of the daemon in TOML, to be stored in the run folder.

    A champion that is not promoted gets the simulated broker with the prices of the run: the daemon replays it, but
    refuses to trade it.
    """
    name = "".join(sign if sign.isalnum() else "-" for sign in run.path.name.lower()).strip("-")[:20] or "run"
    lines = [
        f"name = {json.dumps(name)}",
        'journal = "paper.sqlite"       # paths are relative to this file',
        'run = "."                      # the champion of this folder',
        f"symbols = {json.dumps(list(config.data.symbols))}" if config.data.symbols else "# symbols: all of the run",
        f"capital = {float(config.environment.cash)!r}",
    ]
    if not is_promoted:
        lines += ["", "[broker]", 'kind = "simulated"', f"panel = {json.dumps(config.data.name)}"]
    lines += ["", "[schedule]", 'mode = "close"                 # or "open": fill in the opening auction']
    return "\n".join(lines) + "\n"


def write_paper_config(settings: Settings, run: RunFiles, text: str) -> Path:
    """Write the config into the run folder. Raises RunError if there is one already or it cannot be written."""
    target = open_run(settings.runs, run.name).path / FILE
    if target.exists() or target.is_symlink():
        raise RunError(f"{target} exists already: edit it, or move it away first")
    return write_text(target, text)


def paper_command(config_file: Path, config: RunConfig, *, is_promoted: bool) -> list[str]:
    """The command that trades the config, or replays the test period with it if the champion is not promoted."""
    if is_promoted:
        return ["finrl-pod", "paper", "run", str(config_file)]
    return ["finrl-pod", "paper", "replay", *config.splits.test, str(config_file)]


MAX_TAG, MAX_TAGS = 30, 20


def save_tags(run: RunFiles, tags: Sequence[str]) -> None:
    """Replace the tags of a run. Raises InputError for more or longer tags than allowed, RunError from writing."""
    unique_tags = [tag for tag in dict.fromkeys(" ".join(tag.split()) for tag in tags) if tag]
    if len(unique_tags) > MAX_TAGS:
        raise InputError(f"a run has at most {MAX_TAGS} tags, got {len(unique_tags)}")
    for tag in unique_tags:
        if len(tag) > MAX_TAG or not tag.isprintable():
            raise InputError(f"a tag has at most {MAX_TAG} printable characters, got {tag[:60]!r}")
    file = run.path / TAGS
    if file.is_symlink() or (file.exists() and not is_file(file)):
        raise RunError(f"{file} is not a regular file: remove it first")
    write_json(file, {"tags": unique_tags})

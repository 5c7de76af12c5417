"""The config for paper trading that visitors add to the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

from finrl_pod.errors import RunError
from finrl_pod.files import write_text
from finrl_pod.settings.run import RunConfig
from finrl_pod_app.dashboard.queries.runs import RunFiles, open_run
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

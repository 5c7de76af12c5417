"""The dashboard's settings, passed from the command to the server process in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUNS_VARIABLE = "FINRL_POD_DASHBOARD_RUNS"
JOURNAL_VARIABLE = "FINRL_POD_DASHBOARD_JOURNAL"
HOSTS_VARIABLE = "FINRL_POD_DASHBOARD_HOSTS"
JOURNAL_NAME = "journal.sqlite"


@dataclass(frozen=True)
class Settings:
    """Data that the dashboard shows and hosts that may reach it.

    runs: folder of runs. journal: the paper daemon's journal, None to find it. hosts: host names under which a proxy
    forwards other machines.
    """

    runs: Path = Path("runs")
    journal: Path | None = None
    hosts: tuple[str, ...] = ()

    def to_environment(self) -> dict[str, str]:
        """The settings as environment variables, with absolute paths."""
        values = {RUNS_VARIABLE: str(self.runs.resolve())}
        if self.journal is not None:
            values[JOURNAL_VARIABLE] = str(self.journal.resolve())
        if self.hosts:
            values[HOSTS_VARIABLE] = ",".join(self.hosts)
        return values

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Settings:
        """The settings in `variables`; defaults for those that are not set."""
        journal = variables.get(JOURNAL_VARIABLE)
        hosts = tuple(host for host in variables.get(HOSTS_VARIABLE, "").split(",") if host)
        return cls(Path(variables.get(RUNS_VARIABLE, "runs")), Path(journal) if journal else None, hosts)

    def find_journal(self) -> Path | None:
        """The configured journal, even if it does not exist; else paper/journal.sqlite; else the newest below
        runs/paper; None if there is none."""
        if self.journal is not None:
            return self.journal
        default = Path("paper") / JOURNAL_NAME
        if default.is_file():
            return default
        found = [path for depth in ("", "*/", "*/*/") for path in (self.runs / "paper").glob(depth + JOURNAL_NAME)]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

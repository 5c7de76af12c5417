"""Settings of the dashboard, passed from the command to the server process in environment variables."""

from __future__ import annotations

import os
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

    runs: folder of runs. journals: journals of paper daemons, one per account; empty to find them. hosts: host names
    under which a proxy forwards other machines.
    """

    runs: Path = Path("runs")
    journals: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()

    def to_environment(self) -> dict[str, str]:
        """The settings as environment variables, with absolute paths."""
        values = {RUNS_VARIABLE: str(self.runs.resolve())}
        if self.journals:
            values[JOURNAL_VARIABLE] = os.pathsep.join(str(path.resolve()) for path in self.journals)
        if self.hosts:
            values[HOSTS_VARIABLE] = ",".join(self.hosts)
        return values

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Settings:
        """The settings in `variables`; defaults for those that are not set."""
        journals = tuple(Path(path) for path in variables.get(JOURNAL_VARIABLE, "").split(os.pathsep) if path)
        hosts = tuple(host for host in variables.get(HOSTS_VARIABLE, "").split(",") if host)
        return cls(Path(variables.get(RUNS_VARIABLE, "runs")), journals, hosts)

    def find_journals(self) -> tuple[Path, ...]:
        """The configured journals, even if they do not exist; else paper/journal.sqlite, then those in folders below
        paper and runs/paper, latest change first."""
        if self.journals:
            return self.journals
        default = Path("paper") / JOURNAL_NAME
        folders = [(Path("paper"), ("*/",)), (self.runs / "paper", ("", "*/", "*/*/"))]
        journals = {
            path for folder, depths in folders for depth in depths for path in folder.glob(depth + JOURNAL_NAME)
        }
        newest = sorted(journals - {default}, key=lambda path: (-path.stat().st_mtime, str(path)))
        return (default, *newest) if default.is_file() else tuple(newest)

    def accounts(self) -> dict[str, Path]:
        """The journals by the name of their account."""
        return {self.account_name(path): path for path in self.find_journals()}

    def account_name(self, journal: Path) -> str:
        """The folder of a journal: from the working directory, else from the parent of the runs, else absolute."""
        folder = (journal.parent if journal.name == JOURNAL_NAME else journal).resolve()
        for root in (Path.cwd(), self.runs.resolve().parent):
            if folder.is_relative_to(root) and folder != root:
                return folder.relative_to(root).as_posix()
        return folder.as_posix()

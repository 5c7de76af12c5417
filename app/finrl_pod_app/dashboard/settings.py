"""What the dashboard looks at, handed from the command to the server's process in environment variables."""

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
    """runs: the folder that holds the runs. journal: the daemon's journal, or None to look for it. hosts: names under
    which other machines reach it."""

    runs: Path = Path("runs")
    journal: Path | None = None
    hosts: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """The settings as environment variables, with whole paths."""
        values = {RUNS_VARIABLE: str(self.runs.resolve())}
        if self.journal is not None:
            values[JOURNAL_VARIABLE] = str(self.journal.resolve())
        if self.hosts:
            values[HOSTS_VARIABLE] = ",".join(self.hosts)
        return values

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Settings:
        """The settings that `variables` speak of; defaults where they are silent."""
        journal = variables.get(JOURNAL_VARIABLE)
        hosts = tuple(host for host in variables.get(HOSTS_VARIABLE, "").split(",") if host)
        return cls(Path(variables.get(RUNS_VARIABLE, "runs")), Path(journal) if journal else None, hosts)

    def find_journal(self) -> Path | None:
        """The journal that was named, whether it is there or not; else paper/journal.sqlite, else the newest below
        runs/paper; None where there is none."""
        if self.journal is not None:
            return self.journal
        usual = Path("paper") / JOURNAL_NAME
        if usual.is_file():
            return usual
        found = [path for depth in ("", "*/", "*/*/") for path in (self.runs / "paper").glob(depth + JOURNAL_NAME)]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

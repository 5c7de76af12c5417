"""Conversion of files written by earlier versions: configs, runs, agents, trial registries and journals.

All files are read and converted in memory first; then the old ones are copied to the backup and replaced one by
one, each atomically. Converting twice changes nothing, so an interrupted conversion is completed by repeating it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shutil
import sqlite3
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from finrl_pod.errors import FinrlPodError, InputError, SetupError
from finrl_pod.files import write_text
from finrl_pod.paper.settings import RENAMED as PAPER_RENAMED
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.paper.settings import parse as parse_paper
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.settings.earlier_versions import REMOVED_KEYS, RENAMED_KEYS, rename_former_keys
from finrl_pod.settings.run import RunConfig, parse, parse_saved
from finrl_pod.settings.toml import read_toml
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod_app.services.champions import saved_members
from finrl_pod_app.services.trial_log import champion_identity

BACKUP_MARK = ".bak-"
SUFFIXES = (".json", ".toml", ".sqlite")
SQLITE_HEADER = b"SQLite format 3\x00"
# Kinds of JSON documents and the keys that all documents of a kind have.
DOCUMENTS: Mapping[str, frozenset[str]] = {
    "config": frozenset({"config", "config_sha256", "data_sha256"}),
    "gymnasium config": frozenset({"env", "agent", "steps"}),
    "gymnasium state": frozenset({"learner", "segments", "saves"}),
    "gymnasium result": frozenset({"algorithm", "best_score", "curve"}),
    "agent": frozenset({"spec", "hyperparameters", "tensors_sha256"}),
    "state": frozenset({"leaderboard", "current", "parents", "generation"}),
    "metrics": frozenset({"slots", "rows"}),
    "walk-forward": frozenset({"config_sha256", "folds", "verdict"}),
    "report": frozenset({"config_sha256", "test", "timing"}),
    "verdict": frozenset({"promoted", "rules"}),
}
_HEADER = re.compile(r"^(\s*\[\[?\s*)([A-Za-z0-9_-]+)(\s*\]\]?)")
_KEY = re.compile(r"^(\s*)(?:([A-Za-z0-9_-]+)\s*\.\s*)?([A-Za-z0-9_-]+)(\s*=)")


@dataclass(frozen=True)
class Conversion:
    """One recognised file. status: "converted", or "current" if nothing had to be changed."""

    path: Path
    kind: str
    status: Literal["converted", "current"]


@dataclass
class Migration:
    """Result of `migrate`: recognised files, and the folders and files of the backups."""

    files: list[Conversion] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)


def migrate(paths: Sequence[Path], backup: Path | None = None) -> Migration:
    """Convert files, and folders of files, of earlier versions to the current format.

    Old files are copied into `backup`, by default next to each path as NAME.bak-YYYYMMDD. The trials and looks of a
    converted run are moved to its new config hash in the user's trial registry. Raises InputError for a path that is
    missing or has none of the formats; nothing is written then.
    """
    result = Migration()
    targets = [_Target(path.absolute(), backup) for path in paths]
    for target in targets:
        target.plan()
    hashes = {old: new for target in targets for old, new in target.hashes.items()}
    for target in targets:
        target.apply(hashes, result)
    _migrate_user_registry(targets, hashes, backup, result)
    return result


class _Target:
    """One path to convert. hashes: old hash of a run's config -> new hash."""

    def __init__(self, path: Path, backup: Path | None) -> None:
        self.path, self.backup = path, backup
        self.hashes: dict[str, str] = {}
        self._documents: dict[Path, tuple[str, str, dict[str, Any]]] = {}  # path -> kind, old text, new document
        self._texts: dict[Path, tuple[str, str, str]] = {}  # path -> kind, old text, new text
        self._databases: dict[Path, str] = {}
        self._root: Path | None = None
        self.run_folders: list[Path] = []

    def plan(self) -> None:
        """Read and convert everything in memory. Raises InputError."""
        if not self.path.exists():
            raise InputError(f"{self.path} does not exist; name a file or folder to convert")
        files = [self.path] if self.path.is_file() else sorted(_files(self.path))
        for file in files:
            try:
                self._plan_file(file)
            except FinrlPodError:
                # A folder may hold files of other programs; a file that is named must be one of ours.
                if file == self.path or file.name in ("config.json", "state.json"):
                    raise
        if not (self._documents or self._texts or self._databases):
            raise InputError(f"{self.path} has nothing to convert: no config, run, agent, trial registry or journal")

    def apply(self, hashes: Mapping[str, str], result: Migration) -> None:
        """Write what `plan` converted, after a backup."""
        # config.json last: until then the run counts as not converted, and an interrupted conversion is repeated.
        for file, (kind, old, document) in sorted(self._documents.items(), key=lambda item: item[1][0] == "config"):
            if kind != "config" and document.get("config_sha256") in hashes:
                document["config_sha256"] = hashes[document["config_sha256"]]
            self._write(file, kind, old, _formatted_like(old, document), result)
        for file, (kind, old, text) in self._texts.items():
            self._write(file, kind, old, text, result)
        for file, kind in self._databases.items():
            changed = self._upgrade_journal(file, result) if kind == "journal" else self._convert_registry(file, result)
            result.files.append(Conversion(file, kind, "converted" if changed else "current"))

    def _plan_file(self, file: Path) -> None:
        if file.suffix == ".json":
            self._plan_json(file)
        elif file.suffix == ".toml":
            self._plan_toml(file)
        else:
            self._databases[file] = _database_kind(file)

    def _plan_json(self, file: Path) -> None:
        try:
            old = file.read_text(encoding="utf-8")
            values = json.loads(old)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {file}: {error}") from None
        keys = values.keys() if isinstance(values, dict) else set()
        kind = next((kind for kind, needed in DOCUMENTS.items() if needed <= keys), None)
        if kind is None:
            raise InputError(f"{file} is not a JSON file of finrl-pod; name a run, an agent, a config or a journal")
        document = rename_former_keys(values)
        if kind == "config":
            config = parse_saved(document["config"], str(file))
            if document != values:
                self.hashes[values["config_sha256"]] = document["config_sha256"] = config.sha256
            if file.name == "config.json":
                self.run_folders.append(file.parent)
        elif kind == "gymnasium config":
            parse({"agent": document["agent"]}, str(file))
        self._documents[file] = (kind, old, document)

    def _plan_toml(self, file: Path) -> None:
        values = read_toml(file)
        old = file.read_text(encoding="utf-8-sig")
        if values.keys() <= {item.name for item in dataclasses.fields(RunConfig)}:
            kind, renamed, text = "config file", rename_former_keys(values), _rename_in_text(old, RENAMED_KEYS, {})
            parse(renamed, str(file))
        elif values.keys() <= {item.name for item in dataclasses.fields(PaperConfig)} | PAPER_RENAMED.keys():
            kind, renamed = "paper config", {PAPER_RENAMED.get(key, key): item for key, item in values.items()}
            text = _rename_in_text(old, {}, PAPER_RENAMED)
            parse_paper(renamed, str(file))
        else:
            raise InputError(f"{file} is neither the config of a run nor of paper trading")
        if tomllib.loads(text) != renamed:
            raise InputError(f"{file} has old keys in inline tables or dotted names; rename them by hand")
        self._texts[file] = (kind, old, text)

    def _write(self, file: Path, kind: str, old: str, text: str, result: Migration) -> None:
        if text != old:
            shutil.copy2(file, self.backup_of(file, result))
            write_text(file, text)
        result.files.append(Conversion(file, kind, "converted" if text != old else "current"))

    def _upgrade_journal(self, file: Path, result: Migration) -> bool:
        from finrl_pod.paper.journal.schema import MIGRATIONS
        from finrl_pod.paper.journal.store import Store

        with contextlib.closing(sqlite3.connect(file)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
        if version < len(MIGRATIONS):
            _copy_database(file, self.backup_of(file, result))
        Store.open(file).close()
        return bool(version < len(MIGRATIONS))

    def _convert_registry(self, file: Path, result: Migration) -> bool:
        return convert_registry(file, {}, {}, lambda: self.backup_of(file, result))

    def backup_of(self, file: Path, result: Migration) -> Path:
        """Path of a file's copy in the backup; its folder exists afterwards."""
        if self._root is None:
            name = self.path.name
            sibling = self.path.with_name(f"{name}{BACKUP_MARK}{date.today():%Y%m%d}")
            self._root = _unused(sibling if self.backup is None else self.backup / name)
            result.backups.append(self._root)
        copy = self._root if file == self.path else self._root / file.relative_to(self.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy


def _migrate_user_registry(
    targets: Sequence[_Target], hashes: Mapping[str, str], backup: Path | None, result: Migration
) -> None:
    """Move trials and looks of the converted runs to their new hashes in the user's trial registry."""
    registry = TrialRegistry().path
    if not hashes or not registry.is_file():
        return
    subjects = {}
    old_hashes = {new: old for old, new in hashes.items()}
    for folder in (folder for target in targets for folder in target.run_folders):
        run = RunDirectory(folder)
        with contextlib.suppress(FinrlPodError):  # no finished generation: no looks to move
            members, sha256 = saved_members(run), run.config.sha256
            if sha256 in old_hashes:
                old_subject = champion_identity(old_hashes[sha256], run, members)
                subjects[old_subject] = champion_identity(sha256, run, members)
    target = _Target(registry, backup)
    changed = convert_registry(registry, hashes, subjects, lambda: target.backup_of(registry, result))
    result.files.append(Conversion(registry, "trial registry", "converted" if changed else "current"))


def convert_registry(
    file: Path, hashes: Mapping[str, str], subjects: Mapping[str, str], backup_path: Callable[[], Path]
) -> bool:
    """Rename hyperparameters, config hashes and subjects of looks in a trial registry; True if something changed.

    backup_path: called for the path of the backup before anything is written.
    """
    try:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
            rows = database.execute("SELECT rowid, run, hyperparameters FROM trials").fetchall()
            looks = database.execute("SELECT rowid, subject FROM looks").fetchall()
            trials = [
                (hashes.get(run, run), text, row)
                for row, run, old in rows
                if (text := _renamed_hyperparameters(old)) != old or run in hashes
            ]
            looked = [(subjects[subject], row) for row, subject in looks if subject in subjects]
            if not trials and not looked:
                return False
            _copy_database(file, backup_path())
            database.execute("BEGIN IMMEDIATE")
            # A row of the new name exists if this version continued the run; the old row is then a duplicate.
            database.executemany("UPDATE OR IGNORE trials SET run = ?, hyperparameters = ? WHERE rowid = ?", trials)
            database.executemany("UPDATE OR IGNORE looks SET subject = ? WHERE rowid = ?", looked)
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise SetupError(f"cannot convert the trial registry {file}: {error}") from None
    return True


def _renamed_hyperparameters(text: str) -> str:
    document = rename_former_keys({"hyperparameters": json.loads(text)})
    return json.dumps(document["hyperparameters"], sort_keys=True)


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder that may have to be converted, backups left out."""
    for file in folder.rglob("*"):
        inside = file.relative_to(folder).parts
        if file.suffix in SUFFIXES and file.is_file() and not any(BACKUP_MARK in part for part in inside):
            yield file


def _database_kind(file: Path) -> Literal["trial registry", "journal"]:
    """Kind of an SQLite file by its tables. Raises InputError for others."""
    try:
        with file.open("rb") as stream:
            is_sqlite = stream.read(len(SQLITE_HEADER)) == SQLITE_HEADER
        tables = set()
        if is_sqlite:
            with contextlib.closing(sqlite3.connect(file)) as database:
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    if {"trials", "looks"} <= tables:
        return "trial registry"
    if {"facts", "intents", "settings"} <= tables:
        return "journal"
    raise InputError(f"{file} is neither a trial registry nor a journal of paper trading")


def _copy_database(file: Path, copy: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _formatted_like(old: str, document: Mapping[str, Any]) -> str:
    """JSON text of a document, indented like its old text; the old text itself if nothing changed."""
    if json.loads(old) == document:
        return old
    indent = re.match(r"\{\n( *)", old)
    width = len(indent.group(1)) if indent else None
    return json.dumps(document, sort_keys=True, indent=width, allow_nan=False, ensure_ascii=False) + "\n"


def _rename_in_text(text: str, keys: Mapping[str, Mapping[str, str]], sections: Mapping[str, str]) -> str:
    """Rename keys and section headers line by line, so that comments and layout stay; comment out removed keys."""
    lines, current = [], ""
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            name = header.group(2)
            current = "agent" if name == "cohorts" else name
            line = f"{header.group(1)}{sections.get(name, name)}{header.group(3)}{line[header.end() :]}"
        elif key := _KEY.match(line):
            start, section, name, equals = key.groups()
            if name in REMOVED_KEYS.get(section or current, {}):
                lines.append(f"# {line}")
                continue
            new = keys.get(section or current, {}).get(name, name)
            line = f"{start}{f'{section}.' if section else ''}{new}{equals}{line[key.end() :]}"
        lines.append(line)
    return "".join(lines)


def _unused(path: Path) -> Path:
    """The path, or with -2, -3, ... appended if it exists."""
    candidates = itertools.chain([path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())

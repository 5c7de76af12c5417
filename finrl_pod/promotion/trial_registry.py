"""Registry of trials and looks: one SQLite database per user of what was tried and tested on each data set.

A forgotten trial makes luck look like skill, so the registry is independent of output folders. Data sets are identified
by the hash of their prices, trials by the run that made them (hash of its config and the version): a run that is
resumed or repeated exactly is not counted twice. Looks at data sets that show the same market on the same days count
together (`dataset_fingerprint`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.data.store import Store
from finrl_pod.errors import SetupError
from finrl_pod.prices import Floats, Panel
from finrl_pod.promotion.dataset_fingerprint import (
    DEVELOPMENT_DATE,
    DEVELOPMENT_SUBJECT,
    DatasetFingerprint,
    dataset_fingerprint,
    development_period,
    same_market,
)
from finrl_pod.promotion.effective_trials import effective_trial_count

HOME_VARIABLE = "FINRL_POD_HOME"
FILE = "register.sqlite"
BUSY_TIMEOUT = 60.0  # seconds to wait for another process that writes

_TABLES = """
CREATE TABLE IF NOT EXISTS trials (
    data TEXT NOT NULL, run TEXT NOT NULL, agent TEXT NOT NULL, seed INTEGER NOT NULL, generation INTEGER NOT NULL,
    hyperparameters TEXT NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL, sharpe REAL, excess BLOB,
    made TEXT NOT NULL, PRIMARY KEY (data, run, agent)
);
CREATE TABLE IF NOT EXISTS looks (
    data TEXT NOT NULL, subject TEXT NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL, what TEXT NOT NULL,
    verdict TEXT, made TEXT NOT NULL, PRIMARY KEY (data, subject, first, last)
);
CREATE TABLE IF NOT EXISTS outlines (
    data TEXT PRIMARY KEY, symbols TEXT NOT NULL, days BLOB NOT NULL, levels BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS names (data TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (data, name));
"""
# Looks that overlap a period given by its last and first time, compared by date.
_OVERLAPPING = "substr(first, 1, 10) <= substr(?, 1, 10) AND substr(last, 1, 10) >= substr(?, 1, 10)"


@dataclass(frozen=True, eq=False)
class Trial:
    """An agent that was scored on bars by which trials are selected.

    excess: [T], its returns over the run's reference on the bars first to last (ISO text); None if they are not finite.
    sharpe: their one-period Sharpe ratio, None if it is undefined.
    """

    agent: str
    seed: int
    generation: int
    first: str
    last: str
    sharpe: float | None = None
    excess: Floats | None = None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialCounts:
    """raw: all trials on a data set. clustered: effective number of distinct ones. runs: that made them.

    Trials on different bars never share a cluster.
    """

    raw: int
    clustered: int
    runs: int


@dataclass(frozen=True)
class Look:
    """A look at the test period first to last (ISO text) of a data set. subject: identity of what was tested."""

    data: str
    subject: str
    first: str
    last: str
    what: str


class TrialRegistry:
    """The registry in `path`; by default in FINRL_POD_HOME or the user's data folder.

    Every method opens the file, waits for other processes that write, and raises SetupError where the file cannot
    be used: a trial that cannot be counted must not be made.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else home() / FILE

    def check_writable(self) -> None:
        """Raises SetupError if trials cannot be counted. Call it before a training."""
        with self._open() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            database.execute(f"PRAGMA user_version = {int(version)}")  # written even if it is the same

    def add(self, data: str, run: str, trials: Sequence[Trial], name: str = "") -> None:
        """Count trials of one run; trials that are already counted stay unchanged. name: of the data set, for lists."""
        rows = [
            (data, run, t.agent, t.seed, t.generation, json.dumps(dict(t.hyperparameters), sort_keys=True),
             t.first, t.last, t.sharpe, _pack_returns(t.excess), _now())
            for t in trials
        ]  # fmt: skip
        with self._open() as database:
            database.executemany(f"INSERT OR IGNORE INTO trials VALUES ({', '.join('?' * 11)})", rows)
            _store_name(database, data, name)

    def counts(self, data: str) -> TrialCounts:
        """Number of trials on a data set, raw and clustered."""
        with self._open() as database:
            rows = database.execute(
                "SELECT run, first, last, excess FROM trials WHERE data = ? ORDER BY run, agent", (data,)
            ).fetchall()
        windows: dict[tuple[str, str, int], list[Floats]] = {}
        clustered = 0
        for _, first, last, packed in rows:
            excess = _unpack_returns(packed)
            if excess is None:
                clustered = max(clustered, 1)  # all diverged trials count as one
            else:
                windows.setdefault((first, last, len(excess)), []).append(excess)
        clustered += sum(effective_trial_count(np.stack(columns, 1)) for columns in windows.values())
        return TrialCounts(len(rows), clustered, len({row[0] for row in rows}))

    def data_sets(self) -> list[dict[str, Any]]:
        """Hash, trials, runs and looks of each data set, latest first, and the hashes of those of the same market.

        "recorded_names": those that it had when it was used, oldest first. "number" of a look: what `look` returned;
        "so_far": what `count_looks` returns for its period.
        """
        with self._open() as database:
            trials = database.execute(
                "SELECT data, COUNT(*), COUNT(DISTINCT run), MAX(made) FROM trials GROUP BY data"
            ).fetchall()
            looks = database.execute(
                "SELECT data, first, last, what, made, subject FROM looks ORDER BY rowid"
            ).fetchall()
            recorded: dict[str, list[str]] = {}
            for data, name in database.execute("SELECT data, name FROM names ORDER BY rowid"):
                recorded.setdefault(data, []).append(name)
            fingerprints = {
                data: _unpack_fingerprint(*row)
                for data, *row in database.execute("SELECT data, symbols, days, levels FROM outlines ORDER BY data")
            }
        known: dict[str, dict[str, Any]] = {}
        for data, count, runs, made in trials:
            known[data] = {
                "data_sha256": data,
                "trials": count,
                "runs": runs,
                "last": made,
                "looks": [],
                "same_market": [],
            }
        for data, first, last, what, made, _ in looks:
            new = {"data_sha256": data, "trials": 0, "runs": 0, "last": made, "looks": [], "same_market": []}
            entry = known.setdefault(data, new)
            entry["looks"].append({"first": first, "last": last, "what": what, "made": made})
            entry["last"] = max(entry["last"], made)
        for (a, first_one), (b, second_one) in itertools.combinations(fingerprints.items(), 2):
            if same_market(first_one, second_one):
                known[a]["same_market"].append(b)
                known[b]["same_market"].append(a)
        for data, entry in known.items():
            entry["recorded_names"] = recorded.get(data, [])
        listed = dict.fromkeys(known, 0)
        for i, (data, *_) in enumerate(looks):
            numbered = known[data]["looks"][listed[data]]
            numbered["number"] = _look_number(looks[: i + 1], looks[i], known[data]["same_market"])
            numbered["so_far"] = _look_number(looks, looks[i], known[data]["same_market"])
            listed[data] += 1
        return sorted(known.values(), key=lambda entry: (entry["last"], entry["data_sha256"]), reverse=True)

    def look(self, look: Look, panel: Panel | None = None) -> int:
        """Log a look at a test period; returns the number of looks at it, including this one.

        Looks at overlapping periods of the same data set count together; with a panel also those at data sets of the
        same market, and the one that built finrl_pod (`development`). A repeated look of the same subject is not
        counted again.
        """
        period = None if panel is None else development_period(panel, look.first, look.last)
        with self._open() as database:
            data = [look.data]
            if period is not None:
                database.execute(
                    "INSERT OR IGNORE INTO looks VALUES (?, ?, ?, ?, ?, NULL, ?)",
                    (look.data, DEVELOPMENT_SUBJECT, *period, DEVELOPMENT_SUBJECT, DEVELOPMENT_DATE),
                )
            if panel is not None:
                _store_fingerprint(database, look.data, panel)
                _store_name(database, look.data, panel.name)
                data = _same_market_data(database, look, _stored_fingerprint(database, look.data))
            database.execute(
                "INSERT OR IGNORE INTO looks VALUES (?, ?, ?, ?, ?, NULL, ?)",
                (look.data, look.subject, look.first, look.last, look.what, _now()),
            )
            (made,) = database.execute(
                "SELECT rowid FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
            return _count(database, data, look, until=made)  # later looks do not change an earlier verdict

    def count_looks(self, look: Look, panel: Panel) -> int:
        """Number of looks so far at the test period of a look that is not logged, as `look` counts them."""
        earlier = int(development_period(panel, look.first, look.last) is not None)
        if not self.path.exists():
            return earlier
        with self._open() as database:
            data = _same_market_data(database, look, dataset_fingerprint(panel))
            return earlier + _count(database, data, look, without=DEVELOPMENT_SUBJECT)

    def descriptions(self, data: str) -> list[str]:
        """What the looks at a data set tested, oldest first, each once."""
        if not self.path.exists():
            return []
        with self._open() as database:
            rows = database.execute("SELECT what FROM looks WHERE data = ? ORDER BY rowid", (data,)).fetchall()
        return list(dict.fromkeys(str(what) for (what,) in rows))

    def verdict(self, look: Look) -> dict[str, Any] | None:
        """The saved verdict of a look, or None."""
        with self._open() as database:
            row = database.execute(
                "SELECT verdict FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
        return None if row is None or row[0] is None else dict(json.loads(row[0]))

    def save_verdict(self, look: Look, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Save the verdict of a logged look and return it; if one is already saved, return that one instead."""
        text = json.dumps(verdict, sort_keys=True, allow_nan=False)
        with self._open() as database:
            database.execute(
                "UPDATE looks SET verdict = ? "
                "WHERE data = ? AND subject = ? AND first = ? AND last = ? AND verdict IS NULL",
                (text, *_key(look)),
            )
        return self.verdict(look) or dict(verdict)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One exclusive transaction."""
        database: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)
            database.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                database.execute(statement)
            yield database
            database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SetupError(
                f"cannot use the registry of trials {self.path}: {reason}; set {HOME_VARIABLE} to another folder"
            ) from None
        finally:
            if database is not None:
                database.close()


def _count(
    database: sqlite3.Connection, data: Sequence[str], look: Look, until: int | None = None, without: str = ""
) -> int:
    """Number of subjects in the looks at data sets that overlap a look's period.

    until: row of the last one. without: a subject that is not counted.
    """
    (count,) = database.execute(
        "SELECT COUNT(DISTINCT subject) FROM looks WHERE data IN (SELECT value FROM json_each(?)) "
        f"AND {_OVERLAPPING} AND rowid <= COALESCE(?, rowid) AND subject != ?",
        (json.dumps(data), look.last, look.first, until, without),
    ).fetchone()
    return int(count)


def _look_number(looks: Sequence[tuple[str, ...]], look: tuple[str, ...], same_market: Sequence[str]) -> int:
    """Subjects in the looks that overlap one of them: rows of (data, first, last, what, made, subject)."""
    data, first, last = look[:3]
    return len(
        {
            subject
            for other, begin, end, _, _, subject in looks
            if (other == data or other in same_market) and begin[:10] <= last[:10] and end[:10] >= first[:10]
        }
    )


def home() -> Path:
    """The user's data folder: FINRL_POD_HOME, else the platform's default."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("finrl-pod", appauthor=False))


def _key(look: Look) -> tuple[str, str, str, str]:
    return look.data, look.subject, look.first, look.last


def _store_name(database: sqlite3.Connection, data: str, name: str) -> None:
    if name:
        database.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (data, name))


def _store_fingerprint(database: sqlite3.Connection, data: str, panel: Panel) -> None:
    if _stored_fingerprint(database, data) is None:
        row = (data, *_pack_fingerprint(dataset_fingerprint(panel)))
        database.execute("INSERT INTO outlines VALUES (?, ?, ?, ?)", row)


def _same_market_data(database: sqlite3.Connection, look: Look, mine: DatasetFingerprint | None) -> list[str]:
    """Hashes of a look's data set and of those that show the same market on its days. mine: its fingerprint."""
    others = database.execute(
        f"SELECT DISTINCT data FROM looks WHERE data != ? AND {_OVERLAPPING}",
        (look.data, look.last, look.first),
    ).fetchall()
    known = [(data, _stored_fingerprint(database, data)) for (data,) in others]
    return [look.data, *(data for data, other in known if mine and other and same_market(mine, other))]


def _stored_fingerprint(database: sqlite3.Connection, data: str) -> DatasetFingerprint | None:
    """Stored fingerprint of a data set; None if it was tested before fingerprints were stored."""
    row = database.execute("SELECT symbols, days, levels FROM outlines WHERE data = ?", (data,)).fetchone()
    return None if row is None else _unpack_fingerprint(*row)


def _pack_fingerprint(fingerprint: DatasetFingerprint) -> tuple[str, bytes, bytes]:
    days = fingerprint.days.astype("datetime64[D]").astype("<i8").astype("<i4")
    levels = fingerprint.levels.astype("<f4")
    return json.dumps(sorted(fingerprint.symbols)), zlib.compress(days.tobytes()), zlib.compress(levels.tobytes())


def _unpack_fingerprint(symbols: str, days: bytes, levels: bytes) -> DatasetFingerprint:
    dates = np.frombuffer(zlib.decompress(days), dtype="<i4").astype("datetime64[D]")
    index = np.frombuffer(zlib.decompress(levels), dtype="<f4").astype(np.float64)
    return DatasetFingerprint(frozenset(json.loads(symbols)), dates, index)


def _pack_returns(values: Floats | None) -> bytes | None:
    """Compressed float32, which is precise enough for correlations."""
    return None if values is None else zlib.compress(np.asarray(values, dtype="<f4").tobytes())


def _unpack_returns(data: bytes | None) -> Floats | None:
    return None if data is None else np.frombuffer(zlib.decompress(data), dtype="<f4").astype(np.float64)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


SHORT_HASH = 12  # digits in labels


def list_data_sets(registry: TrialRegistry, data: str | None = None) -> list[dict[str, Any]]:
    """Trials and looks of each data set, latest first, with the names of the store. data: only this panel of the store.

    "names": all that the store has for these prices; "name": the one that they were used under, if it is among them,
    else the first, or None. Data sets that are no longer in the store, or are a selection of a panel's symbols, have
    only "recorded_names", those that they were used under. "label" tells data sets apart in lists.
    """
    store = Store()
    names: dict[str, list[str]] = {}
    for manifest in store.list():
        if not manifest.fault:
            names.setdefault(manifest.sha256, []).append(manifest.name)
    selected = None if data is None else store.load(data).sha256
    known, entries = [], registry.data_sets()
    labels = {entry["data_sha256"]: _label(entry, names.get(entry["data_sha256"], [])) for entry in entries}
    for entry in entries:
        digest = entry["data_sha256"]
        if selected in (None, digest):
            counts = dataclasses.asdict(registry.counts(digest))
            same = [labels.get(other, ", ".join(names.get(other, [])) or other) for other in entry["same_market"]]
            stored = names.get(digest, [])
            used = [name for name in entry["recorded_names"] if name in stored]
            known.append(
                {
                    **entry,
                    "name": next(iter((*used, *stored)), None),
                    "names": stored,
                    "label": labels[digest],
                    "same_market": same,
                    "clustered": counts["clustered"],
                }
            )
    return known


def _label(entry: Mapping[str, Any], stored: Sequence[str]) -> str:
    """The names of the store, else the recorded ones with the start of the hash, else the start of the hash."""
    digest = str(entry["data_sha256"])[:SHORT_HASH]
    recorded = ", ".join(entry["recorded_names"])
    return ", ".join(stored) or (f"{recorded} [{digest}]" if recorded else digest)

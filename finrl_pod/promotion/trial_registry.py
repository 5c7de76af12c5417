"""Registry of trials and looks: one SQLite database per user of what was tried and tested on each data set.

It is independent of output folders, as a forgotten trial makes luck look like skill. Data sets are identified by the
hash of their prices, trials by the run that made them: a run that is resumed or repeated is not counted twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from finrl_pod.data.store import Store
from finrl_pod.errors import SetupError
from finrl_pod.evaluate.overfitting import effective_trial_count
from finrl_pod.files import HOME_VARIABLE, home, reserve_room
from finrl_pod.prices import Floats, Panel
from finrl_pod.promotion.dataset_fingerprint import (
    DEVELOPMENT_DATE,
    DEVELOPMENT_SUBJECT,
    DatasetFingerprint,
    dataset_fingerprint,
    development_period,
    same_market,
    shares_symbols,
)
from finrl_pod.promotion.verdict import TrialCounts, Verdict

FILE = "register.sqlite"
SHORT_HASH = 12  # digits in labels
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
"""
# Looks that overlap a period given by its last and first time, compared by date.
_OVERLAPPING = "substr(first, 1, 10) <= substr(?, 1, 10) AND substr(last, 1, 10) >= substr(?, 1, 10)"


@dataclass(frozen=True, eq=False)
class Trial:
    """An agent that was scored on bars by which trials are selected.

    excess: [T], returns over the reference of the run on the bars first to last (ISO text); None if they are not
    finite. sharpe: their one-period Sharpe ratio, None if it is undefined.
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
class Look:
    """A look at the test period first to last (ISO text) of a data set. subject: identity of what was tested."""

    data: str
    subject: str
    first: str
    last: str
    what: str


@dataclass(frozen=True)
class LookEntry:
    """A logged look. number: result of `TrialRegistry.look`. so_far: result of `count_looks` for its period."""

    first: str
    last: str
    what: str
    made: str
    number: int
    so_far: int


@dataclass(frozen=True)
class DataSet:
    """Trials and looks of a data set. last: time of the latest one.

    name: names of these prices in the store, else the start of their hash. clustered: number of distinct trials.
    same_market: labels of the data sets that show the same market.
    """

    data_sha256: str
    name: str
    trials: int
    clustered: int
    runs: int
    last: str
    looks: tuple[LookEntry, ...]
    same_market: tuple[str, ...]


class TrialRegistry:
    """The registry in `path`; by default in FINRL_POD_HOME or the user data folder.

    Every method opens the file, waits for other processes that write, and raises SetupError where the file cannot
    be used: a trial that cannot be counted must not be made.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else home() / FILE

    def check_writable(self) -> None:
        """Raises SetupError if trials cannot be counted, or soon not any more. Call it before a training."""
        with self._open() as database:
            reserve_room(self.path.parent)
            (version,) = database.execute("PRAGMA user_version").fetchone()
            database.execute(f"PRAGMA user_version = {int(version)}")  # written even if it is the same

    def add(self, data: str, run: str, trials: Sequence[Trial]) -> None:
        """Count trials of one run; trials that are already counted stay."""
        rows = [
            (data, run, t.agent, t.seed, t.generation, json.dumps(dict(t.hyperparameters), sort_keys=True),
             t.first, t.last, t.sharpe, None if t.excess is None else _packed_float32(t.excess), _now())
            for t in trials
        ]  # fmt: skip
        with self._open() as database:
            database.executemany(f"INSERT OR IGNORE INTO trials VALUES ({', '.join('?' * 11)})", rows)

    def counts(self, data: str) -> TrialCounts:
        """Number of trials on a data set, raw and clustered."""
        with self._open() as database:
            rows = database.execute(
                "SELECT run, first, last, excess FROM trials WHERE data = ? ORDER BY run, agent", (data,)
            ).fetchall()
        windows: dict[tuple[str, str, int], list[Floats]] = {}
        cluster_count = 0
        for _, first, last, packed_returns in rows:
            if packed_returns is None:
                cluster_count = max(cluster_count, 1)  # all diverged trials count as one
            else:
                excess = _unpacked_float32(packed_returns)
                windows.setdefault((first, last, len(excess)), []).append(excess)
        cluster_count += sum(effective_trial_count(np.stack(columns, 1)) for columns in windows.values())
        return TrialCounts(len(rows), cluster_count, len({row[0] for row in rows}))

    def data_sets(self) -> list[DataSet]:
        """The data sets with trials or looks, latest first."""
        with self._open() as database:
            fingerprints = {
                data: _unpack_fingerprint(*row)
                for data, *row in database.execute("SELECT data, symbols, days, levels FROM outlines ORDER BY data")
            }
            trials = {
                data: row
                for data, *row in database.execute(
                    "SELECT data, COUNT(*), COUNT(DISTINCT run), MAX(made) FROM trials GROUP BY data"
                )
            }
            looks = database.execute(
                "SELECT data, subject, first, last, what, made, rowid FROM looks ORDER BY rowid"
            ).fetchall()
        markets: dict[str, list[str]] = defaultdict(list)
        for (a, first), (b, second) in itertools.combinations(fingerprints.items(), 2):
            if same_market(first, second):
                markets[a].append(b)
                markets[b].append(a)
        entries: dict[str, list[LookEntry]] = defaultdict(list)
        with self._open() as database:
            for data, subject, begin, end, description, time, row_number in looks:
                hashes = [data, *markets[data]]
                look = Look(data, subject, begin, end, description)
                number = _count(database, hashes, look, until=row_number)
                look_count = _count(database, hashes, look)
                entries[data].append(LookEntry(begin, end, description, time, number, look_count))
        names: dict[str, list[str]] = defaultdict(list)
        for manifest in Store().list():
            names[manifest.sha256].append(manifest.name)
        digests = list(dict.fromkeys([*trials, *entries]))
        labels = {data: ", ".join(names[data]) or data[:SHORT_HASH] for data in digests}
        data_sets = []
        for data in digests:
            count, runs, made = trials.get(data, (0, 0, ""))
            latest = max([made, *(entry.made for entry in entries[data])])
            others = tuple(labels[other] for other in markets[data] if other in labels)
            clustered = self.counts(data).clustered
            data_sets.append(DataSet(data, labels[data], count, clustered, runs, latest, tuple(entries[data]), others))
        return sorted(data_sets, key=lambda entry: (entry.last, entry.data_sha256), reverse=True)

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
                if _stored_fingerprint(database, look.data) is None:
                    row = (look.data, *_pack_fingerprint(dataset_fingerprint(panel)))
                    database.execute("INSERT INTO outlines VALUES (?, ?, ?, ?)", row)
                data = _same_market_data(database, look, _stored_fingerprint(database, look.data))
            database.execute(
                "INSERT OR IGNORE INTO looks VALUES (?, ?, ?, ?, ?, NULL, ?)",
                (look.data, look.subject, look.first, look.last, look.what, _now()),
            )
            (row_number,) = database.execute(
                "SELECT rowid FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
            return _count(database, data, look, until=row_number)  # later looks do not change an earlier verdict

    def log_deployment(self, baseline: str, symbols: Sequence[str]) -> None:
        """Log a baseline that is traded as a look at the tests so far of markets with these symbols.

        Their reports showed its results. A second start of the same baseline adds nothing.
        """
        subject = f"deployment of {baseline}"
        if not self.path.exists():
            return
        with self._open() as database:
            tests = database.execute(
                "SELECT DISTINCT data, first, last, symbols FROM looks JOIN outlines USING (data) "
                "WHERE data NOT IN (SELECT data FROM looks WHERE subject = ?)",
                (subject,),
            ).fetchall()
            for data, first, last, text in tests:
                if shares_symbols(frozenset(symbols), frozenset(json.loads(text))):
                    row = (data, subject, first, last, subject, _now())
                    database.execute("INSERT INTO looks VALUES (?, ?, ?, ?, ?, NULL, ?)", row)

    def count_looks(self, look: Look, panel: Panel) -> int:
        """Number of looks so far at the test period of a look that is not logged, as `look` counts them."""
        development_looks = int(development_period(panel, look.first, look.last) is not None)
        if not self.path.exists():
            return development_looks
        with self._open() as database:
            data = _same_market_data(database, look, dataset_fingerprint(panel))
            return development_looks + _count(database, data, look, without=DEVELOPMENT_SUBJECT)

    def verdict(self, look: Look) -> Verdict | None:
        """The saved verdict of a look, or None. Raises RunError if it is damaged."""
        with self._open() as database:
            row = database.execute(
                "SELECT verdict FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
        return None if row is None or row[0] is None else Verdict.from_dict(json.loads(row[0]))

    def save_verdict(self, look: Look, verdict: Verdict) -> Verdict:
        """Save the verdict of a logged look and return it; if one is already saved, return that one instead."""
        text = json.dumps(verdict.to_dict(), sort_keys=True, allow_nan=False)
        with self._open() as database:
            database.execute(
                "UPDATE looks SET verdict = ? "
                "WHERE data = ? AND subject = ? AND first = ? AND last = ? AND verdict IS NULL",
                (text, *_key(look)),
            )
        return self.verdict(look) or verdict

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
    """Number of subjects in the looks at data sets that overlap the period of a look.

    until: row of the last one. without: a subject that is not counted.
    """
    (count,) = database.execute(
        "SELECT COUNT(DISTINCT subject) FROM looks WHERE data IN (SELECT value FROM json_each(?)) "
        f"AND {_OVERLAPPING} AND rowid <= COALESCE(?, rowid) AND subject != ?",
        (json.dumps(data), look.last, look.first, until, without),
    ).fetchone()
    return int(count)


def _key(look: Look) -> tuple[str, str, str, str]:
    return look.data, look.subject, look.first, look.last


def _same_market_data(database: sqlite3.Connection, look: Look, fingerprint: DatasetFingerprint | None) -> list[str]:
    """Hashes of data sets that show the market of a look on its days, first its own."""
    rows = database.execute(
        f"SELECT DISTINCT data FROM looks WHERE data != ? AND {_OVERLAPPING}", (look.data, look.last, look.first)
    ).fetchall()
    fingerprints = [(data, _stored_fingerprint(database, data)) for (data,) in rows]
    hashes = [data for data, entry in fingerprints if fingerprint and entry and same_market(fingerprint, entry)]
    return [look.data, *hashes]


def _stored_fingerprint(database: sqlite3.Connection, data: str) -> DatasetFingerprint | None:
    """Stored fingerprint of a data set; None if it was tested before fingerprints were stored."""
    row = database.execute("SELECT symbols, days, levels FROM outlines WHERE data = ?", (data,)).fetchone()
    return None if row is None else _unpack_fingerprint(*row)


def _pack_fingerprint(fingerprint: DatasetFingerprint) -> tuple[str, bytes, bytes]:
    days = fingerprint.days.astype("datetime64[D]").astype("<i8").astype("<i4")
    symbols = json.dumps(sorted(fingerprint.symbols))
    return symbols, zlib.compress(days.tobytes()), _packed_float32(fingerprint.levels)


def _unpack_fingerprint(symbols: str, days: bytes, levels: bytes) -> DatasetFingerprint:
    dates = np.frombuffer(zlib.decompress(days), dtype="<i4").astype("datetime64[D]")
    return DatasetFingerprint(frozenset(json.loads(symbols)), dates, _unpacked_float32(levels))


def _packed_float32(values: Floats) -> bytes:
    """Compressed float32: precise enough for correlations."""
    return zlib.compress(np.asarray(values, dtype="<f4").tobytes())


def _unpacked_float32(data: bytes) -> Floats:
    return np.frombuffer(zlib.decompress(data), dtype="<f4").astype(np.float64)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""What was ever tried on a data set, and who looked at its test period: one small database for each user.

A trial that is forgotten makes luck look like skill, so the register outlives every output folder. It is keyed by the
hash of the data: the same prices under another name are the same data. An entry is keyed by what made it (the hash of
the config and the version), so a run that is resumed or repeated to the letter is not counted twice: it tells nothing
new.

Looks are counted beyond the very data: also at what shows the same market on the same days (`kinship`).
"""

from __future__ import annotations

import contextlib
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

from finrl_pod.errors import SetupError
from finrl_pod.promotion.dataset_fingerprint import DatasetFingerprint, dataset_fingerprint, same_market
from finrl_pod.promotion.effective_trials import effective_trial_count
from finrl_pod.types import Floats, Panel

HOME_VARIABLE = "FINRL_POD_HOME"
FILE = "register.sqlite"
PATIENCE = 60.0  # seconds that a process waits for another one to finish writing

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
# Of a look at the last and first moments that are given; a daily bar's is a date, which begins every other's text.
_SAME_DAYS = "substr(first, 1, 10) <= substr(?, 1, 10) AND substr(last, 1, 10) >= substr(?, 1, 10)"


@dataclass(frozen=True, eq=False)
class Trial:
    """One thing that was tried and scored on bars that later choose between trials.

    excess: [T] its returns over equal weight on the bars first to last (dates as ISO text); None where they are no
    numbers. sharpe: of these, one period; None where it has none.
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
    """raw: all trials on the data. clustered: how many of them differ, by the clusters of their returns. runs: whence
    they came. Trials on different bars never share a cluster."""

    raw: int
    clustered: int
    runs: int


@dataclass(frozen=True)
class Look:
    """One look at the test period first to last (dates as ISO text) of a data set. subject: what was looked at."""

    data: str
    subject: str
    first: str
    last: str
    what: str


class TrialRegistry:
    """The register in `path`; by default under the environment's FINRL_POD_HOME, else in the user's data folder.

    Every method opens the file, waits for other processes that write, and raises SetupError where the file cannot
    be used: a trial that cannot be counted must not be made.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else home() / FILE

    def add(self, data: str, run: str, trials: Sequence[Trial]) -> None:
        """Count trials of one run; those that are there already stay as they are."""
        rows = [
            (data, run, t.agent, t.seed, t.generation, json.dumps(dict(t.hyperparameters), sort_keys=True),
             t.first, t.last, t.sharpe, _packed(t.excess), _now())
            for t in trials
        ]  # fmt: skip
        with self._open() as database:
            database.executemany(f"INSERT OR IGNORE INTO trials VALUES ({', '.join('?' * 11)})", rows)

    def counts(self, data: str) -> TrialCounts:
        """How many trials touched the data, raw and by clusters."""
        with self._open() as database:
            rows = database.execute(
                "SELECT run, first, last, excess FROM trials WHERE data = ? ORDER BY run, agent", (data,)
            ).fetchall()
        windows: dict[tuple[str, str, int], list[Floats]] = {}
        clustered = 0
        for _, first, last, packed in rows:
            excess = _unpacked(packed)
            if excess is None:
                clustered = max(clustered, 1)  # what broke is one kind of thing
            else:
                windows.setdefault((first, last, len(excess)), []).append(excess)
        clustered += sum(effective_trial_count(np.stack(columns, 1)) for columns in windows.values())
        return TrialCounts(len(rows), clustered, len({row[0] for row in rows}))

    def data_sets(self) -> list[dict[str, Any]]:
        """For each data set, the latest first: its hash, its trials, its runs, its looks, and the hashes of its kin."""
        with self._open() as database:
            trials = database.execute(
                "SELECT data, COUNT(*), COUNT(DISTINCT run), MAX(made) FROM trials GROUP BY data"
            ).fetchall()
            looks = database.execute(
                "SELECT data, first, last, what, made FROM looks ORDER BY made, subject"
            ).fetchall()
            outlines = {
                data: _unpacked_outline(*row)
                for data, *row in database.execute("SELECT data, symbols, days, levels FROM outlines ORDER BY data")
            }
        known: dict[str, dict[str, Any]] = {}
        for data, count, runs, made in trials:
            known[data] = {"data_sha256": data, "trials": count, "runs": runs, "last": made, "looks": [], "kin": []}
        for data, first, last, what, made in looks:
            new = {"data_sha256": data, "trials": 0, "runs": 0, "last": made, "looks": [], "kin": []}
            entry = known.setdefault(data, new)
            entry["looks"].append({"first": first, "last": last, "what": what, "made": made})
            entry["last"] = max(entry["last"], made)
        for (one, mine), (other, its) in itertools.combinations(outlines.items(), 2):
            if same_market(mine, its):
                known[one]["kin"].append(other)
                known[other]["kin"].append(one)
        return sorted(known.values(), key=lambda entry: (entry["last"], entry["data_sha256"]), reverse=True)

    def look(self, look: Look, panel: Panel | None = None) -> int:
        """Log a look at a test period; returns how many there are at it by now, this one included.

        Looks at overlapping periods of the same data count together: they see the same days. So do those at its kin,
        where its panel is given. A subject that looks again is not counted again.
        """
        with self._open() as database:
            data = [look.data] if panel is None else _kin(database, look, panel)
            database.execute(
                "INSERT OR IGNORE INTO looks VALUES (?, ?, ?, ?, ?, NULL, ?)",
                (look.data, look.subject, look.first, look.last, look.what, _now()),
            )
            (made,) = database.execute(
                "SELECT rowid FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
            # Counted up to this one: who looked first is not judged by those who came after.
            (count,) = database.execute(
                "SELECT COUNT(DISTINCT subject) FROM looks WHERE data IN (SELECT value FROM json_each(?)) "
                f"AND {_SAME_DAYS} AND rowid <= ?",
                (json.dumps(data), look.last, look.first, made),
            ).fetchone()
        return int(count)

    def verdict(self, look: Look) -> dict[str, Any] | None:
        """The verdict that this look led to, or None where none was kept."""
        with self._open() as database:
            row = database.execute(
                "SELECT verdict FROM looks WHERE data = ? AND subject = ? AND first = ? AND last = ?", _key(look)
            ).fetchone()
        return None if row is None or row[0] is None else dict(json.loads(row[0]))

    def save_verdict(self, look: Look, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the verdict of a look that was logged; where one is kept already that one stands, and is returned."""
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
        """One transaction, alone: another process waits its turn."""
        database: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            database.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                database.execute(statement)
            yield database
            database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SetupError(
                f"cannot use the register of trials {self.path}: {reason}; set {HOME_VARIABLE} to a folder of your own"
            ) from None
        finally:
            if database is not None:
                database.close()


def home() -> Path:
    """The folder of what the user keeps: FINRL_POD_HOME, else the platform's folder for data."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("finrl-pod", appauthor=False))


def _key(look: Look) -> tuple[str, str, str, str]:
    return look.data, look.subject, look.first, look.last


def _kin(database: sqlite3.Connection, look: Look, panel: Panel) -> list[str]:
    """Hashes of a look's data set and of those that show the same market on its days. Stores its fingerprint."""
    if _outline(database, look.data) is None:
        row = (look.data, *_packed_outline(dataset_fingerprint(panel)))
        database.execute("INSERT INTO outlines VALUES (?, ?, ?, ?)", row)
    mine = _outline(database, look.data)
    others = database.execute(
        f"SELECT DISTINCT data FROM looks WHERE data != ? AND {_SAME_DAYS}",
        (look.data, look.last, look.first),
    ).fetchall()
    known = [(data, _outline(database, data)) for (data,) in others]
    return [look.data, *(data for data, other in known if mine and other and same_market(mine, other))]


def _outline(database: sqlite3.Connection, data: str) -> DatasetFingerprint | None:
    """As kept; None for data that were looked at before outlines were kept."""
    row = database.execute("SELECT symbols, days, levels FROM outlines WHERE data = ?", (data,)).fetchone()
    return None if row is None else _unpacked_outline(*row)


def _packed_outline(kept: DatasetFingerprint) -> tuple[str, bytes, bytes]:
    days = kept.days.astype("datetime64[D]").astype("<i8").astype("<i4")
    levels = kept.levels.astype("<f4")
    return json.dumps(sorted(kept.symbols)), zlib.compress(days.tobytes()), zlib.compress(levels.tobytes())


def _unpacked_outline(symbols: str, days: bytes, levels: bytes) -> DatasetFingerprint:
    dates = np.frombuffer(zlib.decompress(days), dtype="<i4").astype("datetime64[D]")
    index = np.frombuffer(zlib.decompress(levels), dtype="<f4").astype(np.float64)
    return DatasetFingerprint(frozenset(json.loads(symbols)), dates, index)


def _packed(values: Floats | None) -> bytes | None:
    """float32 is enough for correlations, and half as large."""
    return None if values is None else zlib.compress(np.asarray(values, dtype="<f4").tobytes())


def _unpacked(data: bytes | None) -> Floats | None:
    return None if data is None else np.frombuffer(zlib.decompress(data), dtype="<f4").astype(np.float64)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

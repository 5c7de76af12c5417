"""Panels on disk: one folder per name, with prices as Parquet and a JSON manifest.

Writes are atomic: the Parquet file is named by its content hash and the manifest is renamed into place last, so a
reader gets either the old or the new panel. A reader whose prices were replaced between two reads tries again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.data.built_in_panels import SAMPLE, US74, load_sample, load_us74
from finrl_pod.data.dates import stamp
from finrl_pod.data.flaws import check
from finrl_pod.errors import DataError, FinrlPodError, closest_name
from finrl_pod.files import ROOT_VARIABLE, default_root, replace_file, reserve_room
from finrl_pod.prices import Benchmark, Panel
from finrl_pod.tables import new_table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MANIFEST = "manifest.json"
_TIME = "time"
_BENCHMARK = "benchmark"
_MEMBER = "member"
FORMAT = 1  # of manifests
_replacement: ContextVar[Callable[[Panel], Panel] | None] = ContextVar("_replacement", default=None)

MANIFESTS = Path(__file__).parent / "manifests"
# Panels that need no store, in the order of lists.
BUILT_IN: Mapping[str, Callable[[], Panel]] = {SAMPLE: load_sample, US74: load_us74}


@contextlib.contextmanager
def replaced_panels(replace: Callable[[Panel], Panel]) -> Iterator[None]:
    """Load what `replace` makes of each panel, within the block: audits alter the prices that custom code loads."""
    token = _replacement.set(replace)
    try:
        yield
    finally:
        _replacement.reset(token)


@dataclass(frozen=True)
class PanelVersion:
    """Prices that a panel had before bars were appended: its first bars and symbols. sha256: their hash."""

    sha256: str
    bars: int
    symbols: int


@dataclass(frozen=True)
class Manifest:
    """Description and origin of a panel.

    sha256: hash of the panel; file, file_sha256: its Parquet file and the hash of its bytes. query: the request to the
    source. created: time in UTC, ISO 8601. benchmark: {name, price_only} or None. sectors: one per symbol, or None.
    earlier: versions that the panel begins with, oldest first. builtin: ships with the package instead of being in the
    store. fault: why the panel cannot be used, else empty. read_as: field of `Panel`.
    """

    name: str
    source: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    bar: str = "1d"
    symbols: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    bars: int = 0
    start: str = ""
    end: str = ""
    adjusted: bool = True
    benchmark: Mapping[str, str | bool] | None = None
    sectors: tuple[str, ...] | None = None
    flaws: tuple[str, ...] = ()
    sha256: str = ""
    file: str = ""
    file_sha256: str = ""
    created: str = ""
    earlier: tuple[PanelVersion, ...] = ()
    builtin: bool = False
    fault: str = ""
    read_as: Mapping[str, str | None] = field(default_factory=dict)
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return dict(json.loads(self.to_json()))

    def to_json(self) -> str:
        """The contents of the file of the manifest."""
        return json.dumps(asdict(self), indent=1)


def describe(panel: Panel, **fields: Any) -> Manifest:
    """Manifest of a panel. fields: set by the store."""
    benchmark = panel.benchmark
    return Manifest(
        name=panel.name,
        source=panel.source,
        bar=panel.bar,
        symbols=panel.symbols,
        columns=panel.columns,
        bars=len(panel.times),
        start=stamp(panel.times[0], panel.bar),
        end=stamp(panel.times[-1], panel.bar),
        adjusted=panel.adjusted,
        benchmark=None if benchmark is None else {"name": benchmark.name, "price_only": benchmark.price_only},
        sectors=panel.sectors,
        flaws=panel.flaws,
        sha256=panel.sha256,
        read_as=dict(panel.read_as),
        **fields,
    )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises DataError if the file is missing, damaged or of another format version."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        sectors = values.get("sectors")
        manifest = Manifest(
            **{
                **values,
                **{k: tuple(values[k]) for k in ("symbols", "columns", "flaws")},
                "sectors": None if sectors is None else tuple(sectors),
                "earlier": tuple(PanelVersion(**version) for version in values.get("earlier", ())),
            }
        )
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise DataError(f"{path} is damaged: fetch or import the panel again") from None
    if manifest.format != FORMAT:
        raise DataError(f"{path} has format {manifest.format}, this version reads {FORMAT}: fetch or import it again")
    return manifest


def _unwritable(folder: Path, error: OSError) -> DataError:
    return DataError(f"cannot write to {folder}: {error.strerror}; set {ROOT_VARIABLE} to another one")


class Store:
    """Store of panels in a folder, plus the built-in ones.

    root: the folder; by default the environment variable FINRL_POD_DATA, else FINRL_POD_HOME/data, else the user data
    folder.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()

    def save(
        self, panel: Panel, query: Mapping[str, Any] | None = None, earlier: Sequence[PanelVersion] = ()
    ) -> Manifest:
        """Save under `panel.name`, replacing a panel of that name.

        query, earlier: fields of the manifest.

        Raises DataError for an invalid or reserved name, an invalid panel and a folder that cannot be written. The
        previous panel stays until the new one is complete.
        """
        self.check_name(panel.name)
        folder = self._folder(panel.name)
        faults = [flaw.message for flaw in check(panel) if flaw.hard]
        if faults:
            raise DataError(f"panel {panel.name!r} is not stored: {faults[0]}")
        prices = _encode(panel)
        digest = hashlib.sha256(prices).hexdigest()
        manifest = describe(
            panel,
            query=dict(query or {}),
            earlier=tuple(earlier),
            file=f"prices-{digest[:16]}.parquet",
            file_sha256=digest,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        old_file: Path | None = None
        with contextlib.suppress(DataError):  # a manifest that cannot be read
            old_file = folder / Path(read_manifest(folder / _MANIFEST).file).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / manifest.file, prices)
            replace_file(folder / _MANIFEST, manifest.to_json().encode())
        except OSError as error:
            raise _unwritable(folder, error) from None
        if old_file is not None and old_file.name != manifest.file:
            with contextlib.suppress(OSError):
                old_file.unlink()
        return manifest

    def exists(self, name: str) -> bool:
        """Whether the store has a panel of that name, also a damaged one. Raises DataError for an invalid name."""
        return name in BUILT_IN or bool(self._files(name))

    def delete(self, name: str) -> None:
        """Remove a panel, also a damaged one. Raises DataError for one that is unknown or built in."""
        if name in BUILT_IN:
            raise DataError(f"panel {name!r} is built in: it cannot be deleted")
        files = self._files(name)
        if not files:
            raise self._unknown(name)
        try:
            # The manifest first: without it there is no panel, whatever else remains.
            for file in sorted(files, key=lambda file: file.name != _MANIFEST):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files stay
                self._folder(name).rmdir()
        except OSError as error:
            raise DataError(f"cannot delete {self._folder(name)}: {error.strerror}") from None

    def _files(self, name: str) -> list[Path]:
        """The files of a panel in its folder; the folder may contain other files."""
        folder = self._folder(name)
        return [*folder.glob(_MANIFEST), *folder.glob("prices-*.parquet")]

    def check_name(self, name: str) -> None:
        """Raises DataError if the name is invalid or reserved."""
        self._folder(name)
        if name in BUILT_IN:
            raise DataError(f"the name {name!r} is reserved for the built-in panel: choose another")

    def check_room(self) -> None:
        """Check before prices are read that the folder can be written and has room. Raises DataError."""
        try:
            reserve_room(self.root)
        except OSError as error:
            raise _unwritable(self.root, error) from None

    def load(self, name: str) -> Panel:
        """Load a panel. Raises DataError if there is none, or its files were truncated or altered."""
        panel = BUILT_IN[name]() if name in BUILT_IN else self._load_stored(name)
        replace = _replacement.get()
        return panel if replace is None else replace(panel)

    def _load_stored(self, name: str) -> Panel:
        manifest = self._manifest(name)
        try:
            return self._read_panel(name, manifest)
        except DataError:
            if (newer := self._manifest(name)) == manifest:
                raise
            return self._read_panel(name, newer)  # replaced between the two reads

    def _read_panel(self, name: str, manifest: Manifest) -> Panel:
        # The manifest may have been edited: never read outside the folder of the panel.
        path = self._folder(name) / Path(manifest.file).name
        fix = f"fetch or import {name!r} again"
        try:
            prices = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; {fix}") from None
        if hashlib.sha256(prices).hexdigest() != manifest.file_sha256:
            raise DataError(f"{path} was truncated or altered (its sha256 is not the manifest's): {fix}")
        panel = _decode(prices, manifest, path)
        if panel.sha256 != manifest.sha256:
            raise DataError(f"panel {name!r} does not match the sha256 of its manifest: {fix}")
        return panel

    def show(self, name: str) -> Manifest:
        """Manifest of a panel. Raises DataError if there is none."""
        return _built_in_manifest(name) if name in BUILT_IN else self._manifest(name)

    def list(self) -> tuple[Manifest, ...]:
        """Manifests of all panels, the built-in ones first, then by name; unusable ones have `fault` set."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        names = [f.name for f in folders if f.is_dir() and _NAME.fullmatch(f.name) and f.name not in BUILT_IN]
        manifests: list[Manifest] = []
        for name in (*BUILT_IN, *names):
            try:
                manifests.append(self.show(name))
            except FinrlPodError as error:
                manifests.append(Manifest(name=name, builtin=name in BUILT_IN, fault=str(error)))
        return tuple(manifests)

    def _manifest(self, name: str) -> Manifest:
        path = self._folder(name) / _MANIFEST
        if not path.parent.is_dir():
            raise self._unknown(name)
        return dataclasses.replace(read_manifest(path), name=name)

    def _unknown(self, name: str) -> DataError:
        names = [m.name for m in self.list()]
        close = closest_name(name, names)
        if close:
            return DataError(f"there is no panel {name!r} in {self.root}; did you mean {close}?")
        return DataError(
            f"there is no panel {name!r} in {self.root}, available are {', '.join(names)}: "
            "get it with `finrl-pod data fetch` or `finrl-pod data import`"
        )

    def _folder(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise DataError(
                f"a panel's name has letters, digits, '.', '_' and '-', starts with a letter or digit and is at most "
                f"64 long, got {name!r}"
            )
        return self.root / name


@functools.cache
def _built_in_manifest(name: str) -> Manifest:
    """Manifest of a built-in panel from a file that a test compares with the panel: reading prices takes seconds."""
    return read_manifest(MANIFESTS / f"{name}.json")


def _encode(panel: Panel) -> memoryview:
    """Parquet: "time", "close:AAPL" for each price column and ticker, "member:AAPL" with members, "benchmark"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {_TIME: panel.times.astype("datetime64[ns]")}
    for column in panel.columns:
        values = getattr(panel, column)
        columns |= {f"{column}:{symbol}": np.ascontiguousarray(values[:, n]) for n, symbol in enumerate(panel.symbols)}
    if panel.members is not None:
        columns |= {f"{_MEMBER}:{s}": np.ascontiguousarray(panel.members[:, n]) for n, s in enumerate(panel.symbols)}
    if panel.benchmark is not None:
        columns[_BENCHMARK] = panel.benchmark.close
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return memoryview(buffer.getvalue())


def _decode(prices: bytes, manifest: Manifest, path: Path) -> Panel:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(prices))

        def column_of(name: str) -> np.ndarray:
            # Without threads of Arrow: one that still holds the bytes when the interpreter exits would abort it.
            return np.asarray(file.read([name], use_threads=False).column(name).to_numpy())

        def table_of(column: str, dtype: type) -> np.ndarray:
            table = new_table((file.metadata.num_rows, len(manifest.symbols)), dtype)
            for n, symbol in enumerate(manifest.symbols):  # one at a time: the whole file would be a second copy
                table[:, n] = column_of(f"{column}:{symbol}")
            return table

        values = {column: table_of(column, np.float64) for column in manifest.columns}
        benchmark = manifest.benchmark and Benchmark(
            str(manifest.benchmark["name"]), column_of(_BENCHMARK).copy(), bool(manifest.benchmark["price_only"])
        )
        has_members = f"{_MEMBER}:{manifest.symbols[0]}" in file.schema_arrow.names
        return Panel(
            members=table_of(_MEMBER, np.bool_) if has_members else None,
            times=column_of(_TIME).astype("datetime64[ns]"),
            symbols=manifest.symbols,
            tradable=~np.isnan(values["close"]),
            benchmark=benchmark or None,
            sectors=manifest.sectors,
            adjusted=manifest.adjusted,
            bar=manifest.bar,
            name=manifest.name,
            source=manifest.source,
            flaws=manifest.flaws,
            cash_rates=(),
            tables=(),
            read_as=manifest.read_as,
            **values,
        )
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DataError(f"{path} does not match its manifest ({error}): fetch or import it again") from None
    finally:
        pa.default_memory_pool().release_unused()  # it would keep as much as it ever held

"""JSON manifest that the store writes next to the prices of a panel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finrl_pod.data.dates import stamp
from finrl_pod.errors import DataError
from finrl_pod.prices import Panel

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Description and origin of a panel.

    sha256: hash of the panel; file, file_sha256: its Parquet file and the hash of that file's bytes. query: the request
    to the source. created: UTC, ISO 8601. benchmark: {name, price_only} or None. sectors: of each symbol, or None.
    builtin: ships with the package instead of being in the store. fault: why the panel cannot be used, else empty.
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
    benchmark: Mapping[str, Any] | None = None
    sectors: tuple[str, ...] | None = None
    flaws: tuple[str, ...] = ()
    sha256: str = ""
    file: str = ""
    file_sha256: str = ""
    created: str = ""
    builtin: bool = False
    fault: str = ""
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values


def describe(panel: Panel, **more: Any) -> Manifest:
    """Manifest of a panel; `more`: fields set by the store."""
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
        **more,
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
            }
        )
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise DataError(f"{path} is damaged: fetch or import the panel again") from None
    if manifest.format != FORMAT:
        raise DataError(f"{path} has format {manifest.format}, this version reads {FORMAT}: fetch or import it again")
    return manifest

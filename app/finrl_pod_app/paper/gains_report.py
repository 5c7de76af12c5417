"""`finrl-pod paper gains`: realised gains, open tax lots and figures by symbol, as a record and as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from finrl_pod.errors import InputError
from finrl_pod.files import write_text
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.journal.tax_lots import Lot, RealisedGain, read_selection, tax_lots
from finrl_pod.paper.monitoring.symbols import SymbolFigures, symbol_figures


@dataclass(frozen=True)
class GainsReport:
    """Realised gains, open lots, and figures by symbol in currency."""

    method: str
    realised: Sequence[RealisedGain]
    open_lots: Sequence[Lot]
    symbols: Mapping[str, SymbolFigures]


def gains_report(store: Store, selection: Path | None = None) -> GainsReport:
    """Return the gains of a journal. selection: file with the lots that sales close; FIFO without one.

    Raises InputError for a selection that cannot be read or does not fit the journal.
    """
    lots = tax_lots(store, None if selection is None else read_selection(selection))
    return GainsReport(
        method="first in, first out" if selection is None else "named lots, then first in, first out",
        realised=lots.realised,
        open_lots=lots.open,
        symbols=symbol_figures(store),
    )


def write_gains(report: GainsReport, folder: Path) -> None:
    """Write realised.csv, open_lots.csv and symbols.csv. Raises InputError if the folder cannot be written."""
    symbols = [{"symbol": symbol, **asdict(figures)} for symbol, figures in report.symbols.items()]
    names = {record: [field.name for field in fields(record)] for record in (RealisedGain, Lot, SymbolFigures)}
    tables = (
        ("realised.csv", names[RealisedGain], map(asdict, report.realised)),
        ("open_lots.csv", names[Lot], map(asdict, report.open_lots)),
        ("symbols.csv", ["symbol", *names[SymbolFigures]], symbols),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, columns, rows in tables:
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_text(folder / file, text.getvalue())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None

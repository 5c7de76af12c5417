"""`finrl-pod paper gains`: realised gains, open tax lots and figures by symbol, as JSON values and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.files import write_text
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.journal.tax_lots import read_selection, tax_lots
from finrl_pod.paper.monitoring.symbols import symbol_figures

FILES = {
    "realised": (
        "realised.csv",
        ("strategy", "symbol", "lot", "sale", "opened", "closed", "shares", "cost", "proceeds", "gain"),
    ),
    "open_lots": ("open_lots.csv", ("strategy", "symbol", "lot", "opened", "shares", "cost")),
    "symbols": (
        "symbols.csv",
        ("symbol", "shares", "value", "unrealised_gain", "realised_gain", "dividends", "sold_value"),
    ),
}


def gains_document(store: Store, selection: Path | None = None) -> dict[str, Any]:
    """Return JSON values; amounts as text with all decimals. selection: file of lots that sales close (FIFO without).

    Raises InputError for a selection that cannot be read or does not fit the journal.
    """
    found = tax_lots(store, None if selection is None else read_selection(selection))
    return {
        "method": "first in, first out" if selection is None else "named lots, then first in, first out",
        "realised": [
            {
                "strategy": gain.strategy, "symbol": gain.symbol, "lot": gain.lot, "sale": gain.sale,
                "opened": gain.opened, "closed": gain.closed, "shares": str(gain.shares), "cost": str(gain.cost),
                "proceeds": str(gain.proceeds), "gain": str(gain.gain),
            }
            for gain in found.realised
        ],
        "open_lots": [
            {
                "strategy": lot.strategy, "symbol": lot.symbol, "lot": lot.number, "opened": lot.opened,
                "shares": str(lot.shares), "cost": str(lot.cost),
            }
            for lot in found.open
        ],
        "symbols": symbol_figures(store),
    }  # fmt: skip


def write_gains(document: Mapping[str, Any], folder: Path) -> None:
    """Write the CSV files into a folder. Raises InputError if it cannot be written."""
    rows: dict[str, Sequence[Mapping[str, Any]]] = {
        **{name: document[name] for name in ("realised", "open_lots")},
        "symbols": [{"symbol": symbol, **figures} for symbol, figures in document["symbols"].items()],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (file, columns) in FILES.items():
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[name])
            write_text(folder / file, text.getvalue())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None

"""Small CSV tables that accompany a panel: memberships and corporate actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from finrl_pod.errors import DataError

MAX_BYTES = 50_000_000


def read_side_table(path: Path, contents: str) -> pd.DataFrame:
    """All cells as text, columns named in lower case. contents: what the rows are, for the message on a large file.

    Raises DataError for a file that cannot be read, is no CSV table or has more than `MAX_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES // 1_000_000} MB, too many for a table of {contents}")
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, pd.errors.ParserError) as error:  # among them text that is not UTF-8
        raise DataError(f"{path} is not a CSV table: {' '.join(str(error).split())}") from None
    table.columns = [str(name).strip().lower() for name in table.columns]
    # Of columns with the same name the last counts.
    return table.loc[:, ~table.columns.duplicated(keep="last")]


def column_of(table: pd.DataFrame, aliases: Sequence[str]) -> pd.Series[str] | None:
    """The stripped cells of the first of these columns that the table has, None if it has none."""
    return next((table[alias].str.strip() for alias in aliases if alias in table.columns), None)

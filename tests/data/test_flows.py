"""Files of deposits and withdrawals: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finrl_pod.data.side_tables import read_flows
from finrl_pod.errors import DataError

TIMES = pd.bdate_range("2021-01-04", "2021-04-30").to_numpy("datetime64[ns]")


def write(folder: Path, *lines: str, head: str = "date,amount") -> Path:
    path = folder / "flows.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_flows_of_a_file_count_at_the_next_bar_and_those_of_a_month_at_its_first(tmp_path: Path) -> None:
    flows = read_flows(write(tmp_path, "2021-01-16,100", "2021-04-30,-5.5", "2021-01-18,1e1"), TIMES)
    assert {str(TIMES[t])[:10]: flows[t] for t in np.flatnonzero(flows)} == {"2021-01-18": 110.0, "2021-04-30": -5.5}
    monthly = read_flows("250", TIMES)
    assert [str(TIMES[t])[:10] for t in np.flatnonzero(monthly == 250)] == ["2021-02-01", "2021-03-01", "2021-04-01"]
    assert (read_flows(-250.0, TIMES) == -monthly).all()


@pytest.mark.parametrize(
    ("lines", "head", "message"),
    [
        (["2021-02-01,5,x"], "date,amount,note", "columns date and amount, got 1 with date, amount, note"),
        (["2021-02-01"], "date", "columns date and amount"),
        ([], "date,amount", "got 0 with"),
        (["2021-02-01,much"], "date,amount", r"line 2: the amount must be a number such as 500 or -500, got 'much'"),
        (["2021-02-01,nan"], "date,amount", "got 'nan'"),
        (["2021-02-01,5", "February,5"], "date,amount", "line 3: the date must be a date such as"),
        (
            ["2021-01-04,5"],
            "date,amount",
            "line 2: money can be paid in or out after 2021-01-04 and up to 2021-04-30, got",
        ),
        (["2021-05-01,5"], "date,amount", "got 2021-05-01"),
    ],
)
def test_bad_flows_are_refused_in_a_sentence(tmp_path: Path, lines: list[str], head: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_flows(write(tmp_path, *lines, head=head), TIMES)
    with pytest.raises(DataError, match="cannot read"):
        read_flows("missing.csv", TIMES)

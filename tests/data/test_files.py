"""Import of long and wide CSV and Parquet files; every error names its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.sources.bounded import read_bounded
from finrl_pod.data.sources.files import read_file, read_frame
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import fill_volumes
from finrl_pod.errors import DataError, InputError

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
LONG = (
    "time,symbol,open,close\n2024-01-02,A,1.5,2.5\n2024-01-03,A,1.6,2.6\n2024-01-02,B,3.5,4.5\n2024-01-03,B,3.6,4.6\n"
)
WIDE = "date,A,B\n2024-01-02,2.5,4.5\n2024-01-03,2.6,4.6\n2024-01-04,2.7,4.7\n"


def write(folder: Path, text: str, name: str = "p.csv") -> Path:
    path = folder / name
    folder.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_import_of_a_long_file(tmp_path: Path) -> None:
    panel = read_file(write(tmp_path, LONG))
    assert panel.symbols == ("A", "B")
    assert panel.columns == ("open", "close")
    np.testing.assert_array_equal(panel.close, [[2.5, 4.5], [2.6, 4.6]])
    assert panel.name == "p"
    assert panel.source == "file p.csv"


def test_a_wide_file_equals_its_long_form(tmp_path: Path) -> None:
    wide = read_file(write(tmp_path, WIDE))
    lines = [f"2024-01-0{t + 2},{s},{wide.close[t, n]}" for t in range(3) for n, s in enumerate("AB")]
    long = read_file(write(tmp_path, "\n".join(["date,tic,close", *lines]), "l.csv"))
    assert wide.sha256 == long.sha256


def test_wide_times_out_of_order_and_repeated_are_refused_as_long_ones(tmp_path: Path) -> None:
    lines = WIDE.splitlines()
    for name, rows in {"back": (lines[1], lines[3], lines[2]), "twice": (lines[1], lines[2], lines[2])}.items():
        long = [f"{day},A,{close}" for day, close, _ in (row.split(",") for row in rows)]
        messages = []
        for header, cells in (("date,A,B", rows), ("date,tic,close", long)):
            with pytest.raises(DataError, match=r"^f\.csv, line 4: A (goes back in time|has two bars)") as caught:
                read_file(write(tmp_path, "\n".join([header, *cells]), "f.csv"))
            messages.append(str(caught.value))
        assert messages[0] == messages[1], name


def test_a_wrong_close_beside_a_right_adjusted_close_scales_nothing(tmp_path: Path) -> None:
    """The dividend on bar 20 and the split on bar 22 are steps of the ratio; the close on bar 30 is wrong."""
    days = pd.bdate_range("2021-01-04", periods=40)
    ratio = np.where(np.arange(40) < 20, 0.4, np.where(np.arange(40) < 22, 0.5, 1.0))
    raw, adjusted = 50 / ratio, np.full(40, 50.0)
    table = pd.DataFrame({"date": days, "symbol": "KO", "open": raw, "close": raw, "adj close": adjusted})
    right = read_frame(table)
    np.testing.assert_allclose(right.open, 50)
    assert not [text for text in right.flaws if "wrong" in text]
    table.loc[30, "close"] *= 10
    panel = read_frame(table.sample(frac=1, random_state=0))
    np.testing.assert_allclose(panel.open, 50)
    np.testing.assert_allclose(panel.close, 50)
    (note,) = [text for text in panel.flaws if "wrong" in text]
    assert note.startswith("KO on 2021-02-15 has a close of 500 beside an adj close of 50, a ratio of 0.1, and 1 on")


@pytest.mark.parametrize("date_format", ["%Q", "%", "%%", "dd.mm.yyyy", "%d.%m", "%d.%d.%Y", "", "%Y\0"])
def test_formats_of_no_dates_are_refused(tmp_path: Path, date_format: str) -> None:
    path = write(tmp_path, "date,A\n31.01.2020,1\n")
    with pytest.raises(DataError, match=r"^--date-format takes codes such as %d\.%m\.%Y for 31\.01\.2020, got "):
        read_file(path, date_format=date_format)
    with pytest.raises(DataError, match=r"^--date-format takes codes"):  # in no child process
        read_bounded(path, date_format=date_format)
    assert len(read_file(path, date_format="%d.%m.%Y").times) == 1


def test_tickers_with_dots_name_files_of_a_folder(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,{}\n2024-01-03,{}\n"
    for name, price in (("BRK.B.csv", 1.5), ("RDS.A.CSV", 2.5), ("RDS.B.txt", 3.5), ("._RDS.B.txt", 9.5)):
        write(tmp_path, text.format(price, price), name)
    (tmp_path / "MSFT.csv.gz").write_bytes(gzip.compress(text.format(4.5, 4.5).encode()))
    panel = read_file(tmp_path)
    assert dict(zip(panel.symbols, panel.close[0], strict=True)) == {
        "BRK.B": 1.5, "MSFT": 4.5, "RDS.A": 2.5, "RDS.B": 3.5,
    }  # fmt: skip
    with pytest.raises(DataError, match=r"--symbol BRK\.B \("):
        read_file(tmp_path / "BRK.B.csv")
    assert read_file(tmp_path / "BRK.B.csv", symbol="B").name == "BRK.B"


def test_two_files_of_one_ticker_in_a_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "date,close\n2024-01-02,1\n2024-01-03,1\n", "A.csv")
    write(tmp_path, "date,close\n2024-01-04,2\n2024-01-05,2\n", "A.txt")
    with pytest.raises(DataError, match=r"^A\.csv and A\.txt are both of the ticker A; remove or rename one$"):
        read_file(tmp_path)
    for year in (2020, 2021):
        write(tmp_path / "by year", f"date,symbol,close\n{year}-01-02,A,1\n", f"{year}.csv")
    assert len(read_file(tmp_path / "by year").times) == 2


def test_wide_files_of_a_folder_equal_one_wide_file(tmp_path: Path) -> None:
    both = "date,A,B,C\n2024-01-02,2.5,4.5,\n2024-01-03,2.6,4.6,\n2024-01-04,2.7,4.7,9\n2024-01-05,,,8\n"
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, WIDE, "1.csv")
    write(folder, "date,C\n2024-01-04,9\n2024-01-05,8\n", "2.csv")
    assert read_file(folder).sha256 == read_file(write(tmp_path, both)).sha256
    write(folder, "date,C\n2024-01-04,9\n2024-01-05,x\n", "2.csv")
    with pytest.raises(DataError, match=r"^2\.csv, line 3: C must be a number"):
        read_file(folder)
    write(folder, "date,C\n2024-01-04,9\n2024-01-03,8\n2024-01-05,8\n", "2.csv")
    with pytest.raises(DataError, match=r"^2\.csv, line 3: C goes back in time"):
        read_file(folder)


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%y", "%d-%b-%Y", "%Y/%m/%d"])
def test_dates_of_other_formats_are_read_with_their_format(tmp_path: Path, form: str) -> None:
    days = pd.bdate_range("2024-01-02", periods=20)
    lines = [f"{day.strftime(form)};{price},5" for day, price in zip(days, range(10, 30), strict=True)]
    path = write(tmp_path, "\n".join(["Date;A", *lines]))
    with pytest.raises(DataError, match="--date-format"):
        read_file(path)
    panel = read_file(path, date_format=form, decimal=",")
    assert panel.close[:, 0].tolist() == [price + 0.5 for price in range(10, 30)]
    assert panel.times.astype("datetime64[D]").tolist() == days.date.tolist()


def test_a_gap_without_a_row_is_named_once(tmp_path: Path) -> None:
    rows = ["date,symbol,open,close", *(f"2024-01-0{day},{s},1,1" for s in "AB" for day in (2, 3, 4, 5))]
    without = [row for row in rows if not row.startswith(("2024-01-03,B", "2024-01-04,B"))]
    with pytest.raises(DataError, match=r"^there is no row for B on 2024-01-03, a gap \(and 1 more such bars\): fill"):
        read_file(write(tmp_path, "\n".join(without)))
    empty = [row.replace("B,1,1", "B,,") if row.startswith("2024-01-03,B") else row for row in rows]
    with pytest.raises(DataError, match=r"^p.csv, line 7: B has no prices on 2024-01-03, a gap: fill"):
        read_file(write(tmp_path, "\n".join(empty)))


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("text", [LONG, WIDE], ids=["long", "wide"])
def test_semicolons_and_tabs_are_accepted_as_separators(tmp_path: Path, text: str, separator: str) -> None:
    other = write(tmp_path, text.replace(",", separator), "q.csv")
    assert read_file(other).sha256 == read_file(write(tmp_path, text, "q2.csv")).sha256


def test_long_and_wide_fixtures_are_equal() -> None:
    with pytest.raises(DataError, match=r"^there is no row for TRB on 2024-01-05, a gap"):
        read_file(FIXTURES / "three.csv")
    csv, parquet = (read_file(FIXTURES / f"three.{kind}", allow_gaps=True) for kind in ("csv", "parquet"))
    assert csv.sha256 == parquet.sha256
    wide = read_file(FIXTURES / "three_wide.csv")
    np.testing.assert_array_equal(wide.close[csv.tradable], csv.close[csv.tradable])
    assert [f.split()[0:2] for f in wide.flaws[1:]] == [["TRC", "starts"], ["TRC", "ends"]]


def test_variants_of_csv_headers_blank_lines_byte_order_mark_and_gzip(tmp_path: Path) -> None:
    text = "\ufeffDate, Ticker ,Close\r\n2024-01-02T00:00:00, NA ,1.25\r\n2024-01-03T00:00:00,NA,1.5\r\n\r\n\r\n"
    panel = read_file(write(tmp_path, text))
    assert panel.symbols == ("NA",)
    assert panel.close.tolist() == [[1.25], [1.5]]
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_file(tmp_path / "z.csv.gz").sha256 == panel.sha256


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=30))
def test_numbers_are_read_exactly(tmp_path_factory: pytest.TempPathFactory, prices: list[float]) -> None:
    days = pd.date_range("2000-01-01", periods=len(prices)).strftime("%Y-%m-%d")
    text = "\n".join(["date,A", *(f"{d},{p!r}" for d, p in zip(days, prices, strict=True))])
    panel = read_file(write(tmp_path_factory.mktemp("csv"), text))
    assert panel.close[:, 0].tolist() == prices


def edit(text: str, line: int, old: str, new: str) -> str:
    """The text with `old` replaced by `new` in one line, counted from 1."""
    lines = text.splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edit(LONG, 3, "2.6", "-2.6"), r"p.csv, line 3: close of A on 2024-01-03 is -2.6: prices must be above zero"),
        (edit(LONG, 4, "4.5", "0"), r"p.csv, line 4: close of B on 2024-01-02 is 0: prices must be"),
        (edit(LONG, 5, "4.6", "inf"), r"p.csv, line 5: close of B on 2024-01-03 is inf"),
        (edit(LONG, 3, "2.6", "1e-320"), r"line 3: close of A .* prices must lie between 1e-30 and 1e\+30; correct it"),
        (edit(LONG, 5, "4.6", "1e300"), r"line 5: close of B .* is 1e\+300: prices must lie between"),
        (WIDE.replace(",", ";").replace(".5", ",5"), r"line 2: A must be a number such as 12.5, got '2,5"),
        (edit(LONG, 3, "2.6", ""), r"p.csv, line 3: A has no close on 2024-01-03, a gap"),
        (edit(LONG, 3, "2.6", "NaN"), r"p.csv, line 3: A has no close on 2024-01-03, a gap"),
        (edit(LONG, 5, "4.6", "4,6"), r"p.csv is not a regular table: .*line 5"),
        (edit(LONG, 5, "4.6", "$4.6"), r"p.csv, line 5: close must be a number such as 12.5, got '\$4.6'"),
        (edit(LONG, 5, "4.6", "1_000"), r"p.csv, line 5: close must be a number"),
        (
            edit(LONG, 3, "2024-01-03", "2024-01-02"),
            r"p.csv, line 3: A has two bars on 2024-01-02: remove one, or name",
        ),
        (
            edit(LONG, 3, "2024-01-03", "2024-01-01"),
            r"line 3: A goes back in time, from 2024-01-02 to 2024-01-01: sort",
        ),
        (edit(LONG, 3, "2024-01-03", "03.01.2024"), r"line 3: the time must be a date .*, got '03.01.2024'; for other"),
        (edit(LONG, 3, "2024-01-03", "2024-02-30"), r"line 3: the time must be a date .*, got '2024-02-30'"),
        (edit(LONG, 3, "2024-01-03", "now"), r"line 3: the time must be a date .*, got 'now'"),
        (edit(LONG, 3, "2024-01-03", ""), r"line 3: the time must be a date .*, it is blank"),
        (edit(LONG, 3, "A", " "), r"line 3: the ticker is missing"),
        (edit(LONG, 1, "open", "vwap"), r"p.csv: unknown column 'vwap'; known are time, symbol, open"),
        (edit(LONG, 1, "open", "close"), r"p.csv has the column 'close' twice: remove one"),
        (edit(WIDE, 1, "B", "A"), r"p.csv has the column 'A' twice: remove one"),
        (WIDE.replace("\n", ",\n"), r"p.csv: column 4 has no name: give it one or remove it"),
        (edit(LONG, 1, "close", "volume"), r"column 'close' is missing"),
        (edit(LONG, 1, "symbol", "name"), "no column 'symbol' that names the ticker: if 'name' does, pass"),
        (
            "time,symbol,last\n2024-01-02,A,2.5\n",
            "unknown column 'last'; .*: pass --columns last=close",
        ),
        (
            edit(WIDE, 1, "date", "when"),
            r"no time column \(its columns: when, A, B\): .* --columns when=time .* or wide",
        ),
        (edit(WIDE, 3, "2.6", ""), r"p.csv, line 3: A has no close on 2024-01-03, a gap"),
        (edit(WIDE, 3, "2024-01-03,2.6,4.6", ""), r"p.csv, line 3: the time must be a date .*, it is blank"),
        (edit(WIDE, 4, "4.7", "x"), r"p.csv, line 4: B must be a number such as 12.5, got 'x'"),
        ("time,symbol,close\n", r"p.csv holds no prices"),
        ("time\n2024-01-02\n", r"p.csv holds no prices"),
        ("", r"p.csv is empty"),
    ],
)
def test_every_error_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as excinfo:
        read_file(write(tmp_path, text))
    assert "\n" not in str(excinfo.value)


def test_parquet_as_written_by_pandas_and_yfinance(tmp_path: Path) -> None:
    wide = pd.read_csv(write(tmp_path, WIDE), parse_dates=["date"])
    wide.set_index("date", drop=False).to_parquet(tmp_path / "kept.parquet")
    wide.set_index("date").to_parquet(tmp_path / "moved.parquet")
    expected = read_file(write(tmp_path, WIDE)).sha256
    assert {read_file(tmp_path / f"{name}.parquet").sha256 for name in ("kept", "moved")} == {expected}
    levels = wide.set_index("date")
    levels.columns = pd.MultiIndex.from_product([["Close"], levels.columns], names=["Price", "Ticker"])
    levels.to_parquet(tmp_path / "levels.parquet")
    assert read_file(tmp_path / "levels.parquet").sha256 == expected


def test_allowed_gaps_become_untradable(tmp_path: Path) -> None:
    panel = read_file(write(tmp_path, edit(WIDE, 3, "2.6", "")), allow_gaps=True)
    assert panel.tradable.tolist() == [[True, True], [False, True], [True, True]]


INTRADAY = "time,A\n2024-01-02T09:30:00-05:00,1\n2024-01-02T10:30:00-05:00,2\n"


@pytest.mark.parametrize("cell", ["", "-", "n/a"])
def test_a_bar_without_a_volume_keeps_its_prices(tmp_path: Path, cell: str) -> None:
    """Within the life of a ticker as on its newest bars, where it would look delisted."""
    rows = [f"2024-01-0{day},A,{day}.5,{cell if day in (3, 5) else 1000 + day}" for day in range(2, 6)]
    panel = read_file(write(tmp_path, "\n".join(["date,symbol,close,volume", *rows])))
    assert panel.close[:, 0].tolist() == [2.5, 3.5, 4.5, 5.5]
    assert panel.tradable.all()
    assert panel.volume is not None
    np.testing.assert_array_equal(panel.volume[:, 0], [1002, np.nan, 1004, np.nan])
    (flaw,) = [flaw for flaw in panel.flaws if "without volume" in flaw]
    assert flaw.startswith("2 bars without volume, the first of A on 2024-01-03")
    store = Store(tmp_path / "store")
    store.save(panel)
    assert store.load("p").tradable.all()
    volumes = fill_volumes(panel, panel.tradable, ~panel.tradable, "same_close")
    assert volumes is not None
    assert volumes[:, 0].tolist() == [1002, 1002, 1004, 1004]


def test_filled_days_without_a_volume_repeat_their_prices() -> None:
    days = pd.bdate_range("2024-01-01", periods=30)
    volume = np.where(np.arange(30) % 5 == 4, np.nan, 100.0 + np.arange(30))
    close = np.where(np.arange(30) % 5 == 4, np.nan, 10.0 + np.arange(30))
    prices = pd.DataFrame({"date": days, "symbol": "A", "close": close, "volume": volume}).ffill()
    prices["volume"] = volume
    assert len(read_frame(prices, drop_repeated_bars=True).times) == 24


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (INTRADAY, "2024-01-02T14:30"),
        (INTRADAY.replace("-05:00", "Z"), "2024-01-02T09:30"),
        (INTRADAY.replace("-05:00", ""), "2024-01-02T09:30"),
        (INTRADAY.replace("-05:00", "Z", 1).replace("-05:00", "+00:00"), "2024-01-02T09:30"),
    ],
)
def test_times_are_utc_unless_they_have_a_zone(tmp_path: Path, text: str, first: str) -> None:
    panel = read_file(write(tmp_path, text), bar="1h")
    assert str(panel.times[0])[:16] == first


def test_daily_bars_keep_their_written_date(tmp_path: Path) -> None:
    text = "time,A\n2024-01-02T00:00:00+09:00,1\n2024-01-03T00:00:00+09:00,1\n"
    assert str(read_file(write(tmp_path, text)).times[0])[:10] == "2024-01-02"


def test_times_with_and_without_a_zone_are_refused(tmp_path: Path) -> None:
    text = INTRADAY.replace("2024-01-02T10:30:00-05:00", "2024-01-02T10:30:00")
    with pytest.raises(DataError, match=r"line 3: mixed time zones, no zone after zone -05:00: write a zone at all"):
        read_file(write(tmp_path, text), bar="1h")


def test_offsets_may_change_with_daylight_saving(tmp_path: Path) -> None:
    text = "date,A\n2024-03-08 00:00:00-05:00,1\n2024-03-11 00:00:00-04:00,2\n"
    daily = read_file(write(tmp_path, text))
    assert [str(t)[:16] for t in daily.times] == ["2024-03-08T00:00", "2024-03-11T00:00"]
    hourly = read_file(write(tmp_path, text.replace("00:00:00", "09:30:00")), bar="1h")
    assert [str(t)[:16] for t in hourly.times] == ["2024-03-08T14:30", "2024-03-11T13:30"]


def test_intraday_times_in_a_daily_file_suggest_the_bar_option(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two bars on 2024-01-02: remove one, or name the bar"):
        read_file(write(tmp_path, INTRADAY))


def test_parquet_wide_long_and_indexed_by_time(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"A": [1.0, 2.0], "B": [3.0, 4.0]},
        index=pd.DatetimeIndex(["2024-01-02T14:30", "2024-01-02T15:30"], tz="UTC", name="time"),
    )
    frame.to_parquet(tmp_path / "w.parquet")
    panel = read_file(tmp_path / "w.parquet", bar="1h")
    assert panel.symbols == ("A", "B")
    assert panel.close.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    long = frame.stack().rename_axis(["time", "symbol"]).rename("close")
    long.reset_index().to_parquet(tmp_path / "l.parquet")
    assert read_file(tmp_path / "l.parquet", bar="1h").sha256 == panel.sha256
    long.to_frame().to_parquet(tmp_path / "i.parquet")
    assert read_file(tmp_path / "i.parquet", bar="1h").sha256 == panel.sha256
    frame.iloc[1, 0] = -1.0
    frame.to_parquet(tmp_path / "w.parquet")
    with pytest.raises(DataError, match=r"w.parquet, row 2: close of A on 2024-01-02T15:30Z is -1"):
        read_file(tmp_path / "w.parquet", bar="1h")


@pytest.mark.parametrize("keep", [0, 100, -20])
def test_truncated_parquet_files_raise_data_error(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes((FIXTURES / "three.parquet").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cannot read .*: it is truncated or not a Parquet file"):
        read_file(path)


def test_missing_files_and_unknown_suffixes_are_refused(tmp_path: Path) -> None:
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(DataError, match=r"cannot read .*No such file"):
            read_file(tmp_path / name)
    with pytest.raises(DataError, match=r"must end in .csv"):
        read_file(tmp_path / "prices.xlsx")
    (tmp_path / "b.csv").write_bytes(b"time,A\n2024-01-02,\xff\xfe\n")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_file(tmp_path / "b.csv")
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(WIDE.encode())[:30])
    with pytest.raises(DataError, match="cannot read"):
        read_file(tmp_path / "g.csv.gz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG.replace("2024-01-02,A", "1500-01-02,A"), "line 2: years must be from 1678 to 2261, got 1500"),
        (LONG.replace("2024-01-03,B", "9999-01-03,B"), "line 5: years must be from 1678 to 2261, got 9999"),
        (LONG.replace("3.5,4.5", "3.5,4.5,9,9"), "p.csv is not a regular table"),
        (LONG.replace("5\n", "5,7\n").replace("6\n", "6,7\n"), "lines have more cells than its header"),
    ],
)
def test_years_and_cells_out_of_range_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_file(write(tmp_path, text))


def test_damaged_gzip_files_raise_data_error(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.gz"
    compressed = bytearray(gzip.compress(LONG.encode() * 50))
    compressed[20:40] = bytes(20)
    path.write_bytes(bytes(compressed))
    with pytest.raises(DataError, match="cannot read"):
        read_file(path)


# ---------------------------------------------------------------------- files as people have them

OHLCV = "Date,Open,High,Low,Close,Adj Close,Volume\n2024-01-02,20,22,18,20,10,5\n2024-01-03,11,12,10,11,11,6\n"


def test_one_ticker_is_named_by_an_option_and_adjusted_by_its_adjusted_close(tmp_path: Path) -> None:
    path = write(tmp_path, OHLCV)
    panel = read_file(path, symbol="ABC")
    assert panel.symbols == ("ABC",)
    assert panel.close[:, 0].tolist() == [10, 11]
    assert panel.open is not None
    assert panel.high is not None
    assert (panel.open[:, 0].tolist(), panel.high[:, 0].tolist()) == ([10, 11], [11, 12])
    raw = read_file(path, symbol="ABC", adjusted=False)
    assert raw.close[:, 0].tolist() == [20, 11]
    assert any("'adj close' was left out" in flaw for flaw in raw.flaws)
    with pytest.raises(DataError, match=r"no column 'symbol' that names the ticker: pass --symbol P \("):
        read_file(path)


def test_row_numbers_and_volumes_of_a_wide_file_are_no_tickers(tmp_path: Path) -> None:
    text = "Unnamed: 0,Date,AAA,BBB,Volume,AAA Volume\n0,2024-01-02,1,2,7,8\n1,2024-01-03,1,2,7,8\n"
    for header in (text, text.replace("Unnamed: 0", "")):
        panel = read_file(write(tmp_path, header))
        assert panel.symbols == ("AAA", "BBB")
        assert "Columns of volumes were left out: Volume, AAA Volume." in panel.flaws
    with pytest.raises(DataError, match="a column 'Open' but no 'close'"):
        read_file(write(tmp_path, text.replace("AAA,", "Open,")))


@pytest.mark.parametrize("fields_first", [True, False])
def test_two_header_rows_of_yfinance(tmp_path: Path, fields_first: bool) -> None:
    one, two = "Price,Close,Close,Open,Open,Volume,Volume", "Ticker,AAA,BBB,AAA,BBB,AAA,BBB"
    head = (one, two) if fields_first else (two, one)
    rows = "2024-01-02,1,2,3,4,5,6\n2024-01-03,1,,3,,5,\n2024-01-04,1,x,3,4,5,6\n"
    path = write(tmp_path, "\n".join([*head, "Date,,,,,,", rows]))
    with pytest.raises(DataError, match=r"p.csv, line 6, BBB: Close must be a number"):
        read_file(path)
    panel = read_file(write(tmp_path, path.read_text().replace("x", "2")), allow_gaps=True)
    assert panel.symbols == ("AAA", "BBB")
    assert panel.open is not None
    assert panel.open[0].tolist() == [3, 4]
    assert panel.tradable.tolist() == [[True, True], [True, False], [True, True]]


def test_european_numbers_and_dates(tmp_path: Path) -> None:
    text = "date;A\n02.01.2024;1.234,5\n03.01.2024;12,25\n"
    panel = read_file(write(tmp_path, text), decimal=",", date_format="%d.%m.%Y")
    assert panel.close[:, 0].tolist() == [1234.5, 12.25]
    assert str(panel.times[0])[:10] == "2024-01-02"
    with pytest.raises(DataError, match="pass --date-format"):
        read_file(write(tmp_path, text))
    assert read_file(write(tmp_path, text), date_format="%d.%m.%Y").sha256 == panel.sha256
    with pytest.raises(DataError, match=r"got '1\.234,5'; .*--decimal , if they separate decimals"):
        read_file(write(tmp_path, text), date_format="%d.%m.%Y", decimal=".")
    with pytest.raises(DataError, match="--decimal must be"):
        read_file(write(tmp_path, text), decimal=";")


def test_a_folder_has_one_file_for_each_ticker(tmp_path: Path) -> None:
    folder = tmp_path / "prices"
    folder.mkdir()
    with pytest.raises(DataError, match="has no file that ends in"):
        read_file(folder)
    for name in ("AAA", "BBB"):
        write(folder, "date,close\n2024-01-02,1\n2024-01-03,2\n", f"{name}.csv")
    (folder / "notes.md").write_text("no prices")
    assert read_file(folder).symbols == ("AAA", "BBB")
    write(folder, "date,close\n2024-01-02,1\n2024-01-03,-2\n", "BBB.csv")
    with pytest.raises(DataError, match=r"BBB.csv, line 3: close of BBB on 2024-01-03 is -2"):
        read_file(folder)


def history(zone: str | None = None, **columns: float) -> pd.DataFrame:
    """Bars as Ticker.history() of yfinance returns them, with a dividend on the third day."""
    days = pd.date_range("2024-01-01", periods=4, freq="D", name="Date", tz=zone)
    close = np.array([10.0, 11, 12, 13])
    prices = {"Open": close, "High": close + 1, "Low": close - 1, "Close": close, "Volume": 100}
    return pd.DataFrame({**prices, "Dividends": [0, 0, 0.5, 0], "Stock Splits": 0.0, **columns}, index=days)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", None])
def test_the_history_of_one_ticker_has_its_trading_days(zone: str | None) -> None:
    panel = read_frame(history(zone, **{"Capital Gains": 0.0}), symbol="AAPL")
    assert panel.symbols == ("AAPL",)
    assert [str(day)[:10] for day in panel.times] == ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"]
    assert panel.columns == ("open", "high", "low", "close", "volume")
    assert any("taken as adjusted for both" in flaw for flaw in panel.flaws)
    assert not any(
        "taken as adjusted for both" in flaw for flaw in read_frame(history(), symbol="A", adjusted=False).flaws
    )


@pytest.mark.parametrize("ticker_first", [True, False])
def test_downloads_with_dividends_and_splits_are_read(ticker_first: bool) -> None:
    frame = pd.concat({"AAPL": history(), "MSFT": history().iloc[1:]}, axis=1, names=["Ticker", "Price"])
    frame.loc[:, ("MSFT", "Dividends")] = frame[("MSFT", "Dividends")].fillna(0.0)  # 0 where there is no bar
    panel = read_frame(frame if ticker_first else frame.swaplevel(axis=1))
    assert panel.symbols == ("AAPL", "MSFT")
    assert panel.close[:, 1].tolist()[1:] == [11, 12, 13]
    assert np.isnan(panel.close[0, 1])
    assert any("taken as adjusted for both" in flaw for flaw in panel.flaws)


def test_downloads_with_an_adjusted_close_are_adjusted_by_it() -> None:
    part = history().assign(**{"Adj Close": [5.0, 5.5, 6, 6.5]})
    panel = read_frame(pd.concat({"AAPL": part}, axis=1).swaplevel(axis=1))
    assert panel.close[:, 0].tolist() == [5.0, 5.5, 6, 6.5]
    assert panel.high is not None
    assert panel.high[0, 0] == 5.5
    assert not any("taken as adjusted for both" in flaw for flaw in panel.flaws)


@pytest.mark.parametrize("code", ["%Q", "%d.%m.%Q", "%j %W"])
def test_unknown_codes_of_a_date_format_are_named(code: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("date,A\n31/01/2020,1\n03/02/2020,2\n")
    with pytest.raises(DataError, match="--date-format takes codes") as caught:
        read_file(file, date_format=code)
    assert len(str(caught.value)) < 300


def frame_of(tickers: int, bars: int = 60) -> pd.DataFrame:
    days = pd.bdate_range("2024-01-02", periods=bars)
    prices = 50 * np.exp(np.random.default_rng(1).normal(0, 0.01, (bars, tickers)).cumsum(0))
    return pd.DataFrame(prices, days, list("ABCDEF"[:tickers]))


def test_many_repeated_bars_of_several_tickers_are_refused_unless_allowed() -> None:
    filled = frame_of(2).resample("D").ffill()
    with pytest.raises(DataError, match=r"^24 of 84 bars \(28.6%\) repeat every price .* --drop-repeated-bars"):
        read_frame(filled)
    assert len(read_frame(filled, drop_repeated_bars=True).times) == 60
    assert len(read_frame(filled, allow_repeated_bars=True).times) == 84
    assert len(read_frame(filled[["A"]]).times) == 84, "a single ticker may stand still"
    few = frame_of(3)
    few.iloc[[10, 30, 50]] = few.iloc[[9, 29, 49]].to_numpy()
    assert any("3 of 60 bars (5.0%)" in flaw for flaw in read_frame(few).flaws)


@pytest.mark.parametrize(
    ("factor", "new_shares", "dividend"),
    [
        *[(0.25, 4, False), (10.0, 0.1, False), (2 / 3, 1.5, False), (0.75, 4 / 3, False), (0.8, 1.25, False)],
        *[(5 / 6, 1.2, False), (10 / 11, 1.1, False), (0.4, 2.5, False)],
        *[(0.98, 1, False), (0.7734, 1, False), (0.9, 1, False), (0.835, 1, False), (0.5, 1, True)],
        (20 / 21, 1, False),  # a stock dividend of 5% is too small to be told from a dividend in cash
    ],
)
def test_a_split_scales_volumes_and_a_dividend_never_does(factor: float, new_shares: float, dividend: bool) -> None:
    before = np.arange(60) < 30
    # Yahoo adjusts its closes for splits: a step of the ratio without a jump of the close is a dividend.
    close = (frame_of(1)["A"].to_numpy() / np.where(before & (not dividend), factor, 1)).round(2)
    adjusted = (close * np.where(before, factor, 1)).round(4)
    volume = np.where(before, 1000.0, 1000 * new_shares)
    table = pd.DataFrame({"date": frame_of(1).index, "close": close, "adj close": adjusted, "volume": volume})
    panel = read_frame(table, symbol="A")
    assert panel.volume is not None
    np.testing.assert_allclose(panel.volume[:, 0], 1000 * new_shares)
    np.testing.assert_allclose(panel.close[:, 0], adjusted)
    np.testing.assert_allclose(panel.dollar_volume, (close * volume)[:, None])
    fill = fill_volumes(panel, panel.tradable, np.zeros_like(panel.tradable), "same_close")
    np.testing.assert_allclose(fill * panel.close, panel.dollar_volume)


def test_dollar_volume_is_close_times_volume_without_an_adjusted_close() -> None:
    table = pd.DataFrame({"date": frame_of(1).index, "close": 5.0 + np.arange(60), "volume": 7.0})
    panel = read_frame(table, symbol="A")
    np.testing.assert_array_equal(panel.dollar_volume, 7 * panel.close)
    assert read_frame(frame_of(2)).dollar_volume is None


def test_a_close_with_a_blank_adjusted_close_is_refused() -> None:
    long = frame_of(2).rename_axis("date").melt(ignore_index=False, var_name="symbol", value_name="close").reset_index()
    long["adj close"] = long["close"].where(long["symbol"] == "A")
    with pytest.raises(DataError, match=r"B has a close but a blank 'adj close' \(as on 60 rows\)"):
        read_frame(long)
    assert read_frame(long, adjusted=False).symbols == ("A", "B")


@pytest.mark.parametrize("name", [float("nan"), None, pd.NaT, pd.NA])
def test_columns_without_a_name_are_refused(name: object) -> None:
    with pytest.raises(DataError, match="column 2 has no name"):
        read_frame(frame_of(2).set_axis(pd.Index([name, "B"], dtype=object), axis=1))


def test_a_first_line_of_excel_names_the_separator(tmp_path: Path) -> None:
    panel = read_file(write(tmp_path, "sep=;\n" + WIDE.replace(",", ";")))
    assert panel.sha256 == read_file(write(tmp_path, WIDE)).sha256
    with pytest.raises(DataError, match=r"p.csv, line 3: B must be a number"):
        read_file(write(tmp_path, "sep=|\n" + WIDE.replace(",", "|").replace("4.5", "x")))


@pytest.mark.parametrize("form", ["%Y-%m-%d,%H:%M", "%d.%m.%Y,%H:%M:%S"])
def test_a_column_of_hours_beside_one_of_dates(tmp_path: Path, form: str) -> None:
    times = pd.date_range("2024-01-02 09:00", periods=4, freq="h")
    lines = [f"{time:{form}},{5 + i}".replace(",09", ",9") for i, time in enumerate(times)]
    date_format = None if "-" in form else "%d.%m.%Y"
    path = write(tmp_path, "\n".join(["Date,Time,close", *lines]))
    panel = read_file(path, symbol="A", bar="1h", date_format=date_format)
    np.testing.assert_array_equal(panel.times, times.to_numpy())


@pytest.mark.parametrize(
    ("factor", "unit"), [(1, "seconds"), (10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")]
)
@pytest.mark.parametrize("first", ["2024-01-02 09:00", "2001-09-08 23:00"])
def test_times_since_1970_name_their_unit(factor: int, unit: str, first: str) -> None:
    times = pd.date_range(first, periods=4, freq="h")
    stamps = times.as_unit("s").astype(np.int64) * factor
    for cells in (stamps, stamps.astype(str)):
        panel = read_frame(pd.DataFrame({"time": cells, "symbol": "A", "close": 5.0}), bar="1h")
        np.testing.assert_array_equal(panel.times, times.to_numpy())
        assert f"Times were read as {unit} since 1970, in UTC." in panel.flaws


def test_the_live_row_of_the_running_day_is_left_out(tmp_path: Path) -> None:
    lines = frame_of(2, 5).to_csv().splitlines()
    live = f"{lines[-1][:10]} 16:00:02{lines[-1][10:]}"
    panel = read_file(write(tmp_path, "\n".join([*lines, live]).replace(",A", "date,A", 1)))
    assert len(panel.times) == 5
    assert any("was left out" in flaw for flaw in panel.flaws)


@pytest.mark.parametrize(("cell", "value"), [("2024-01-03", "d" * 10**5), ("2.6", "9x " * 10**5), ("A", "A" * 10**5)])
def test_messages_cut_long_cells(tmp_path: Path, cell: str, value: str) -> None:
    with pytest.raises(DataError) as caught:
        read_file(write(tmp_path, LONG.replace(cell, value, 1).replace("2.5", "0")))
    assert len(str(caught.value)) < 600


def test_separator_and_names_of_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "Datum|Code|Last\n02.01.2024|A|2,5\n03.01.2024|A|2,6\n")
    options = {"separator": "|", "columns": "Datum=date, Code=symbol, Last=close", "decimal": ","}
    panel = read_file(path, date_format="%d.%m.%Y", **options)
    assert panel.symbols == ("A",)
    np.testing.assert_array_equal(panel.close, [[2.5], [2.6]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ";;"}, "--separator must be one character"),
        ({"separator": ""}, "--separator must be one character"),
        ({"columns": "Last"}, "--columns takes pairs"),
        ({"columns": "Last=close=x"}, "--columns takes pairs"),
        ({"columns": "Last=close"}, "no column 'Last' to rename"),
    ],
)
def test_options_of_columns_are_checked(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_file(write(tmp_path, LONG), **options)


@pytest.mark.parametrize(
    "options", [{"columns": 3}, {"columns": {"a": 1}}, {"symbol": 3}, {"decimal": 0.5}, {"adjusted": "yes"}]
)
def test_options_of_wrong_types_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(options))} must be "):
        read_frame(pd.DataFrame(), **options)


@pytest.mark.parametrize("name", ["A\0B", "A\x1bB", 81 * "A"])
@pytest.mark.parametrize("text", [LONG.replace(",A,", ",NAME,"), WIDE.replace("A", "NAME")])
def test_tickers_of_control_characters_and_endless_ones_are_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match=r"cannot be printed|81 characters"):
        read_file(write(tmp_path, text.replace("NAME", name)))


@pytest.mark.parametrize(
    "text", ["WORD", "time,WORD\n2024-01-02,1", "time,A\nWORD,1", "time,A\n2024-01-02,WORD", LONG + "WORD"]
)
def test_messages_quote_the_start_of_a_cell(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError) as raised:
        read_file(write(tmp_path, text.replace("WORD", 1_000 * "w ")))
    assert len(str(raised.value)) < 500

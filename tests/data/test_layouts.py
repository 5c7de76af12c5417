"""Files as providers write them: columns, tickers, dates, numbers and adjustment of each layout."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli.data import app
from finrl_pod_app.prices.price_updates import update_prices
from finrl_pod_app.prices.stored_prices import import_prices
from typer.testing import CliRunner

from finrl_pod.data.sources.bar_columns import bar_columns
from finrl_pod.data.sources.files import read_file, read_frame
from finrl_pod.data.sources.layouts import LAYOUTS, OWN_FILE, layout_of
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.prices import read_as_sentence

DAYS = pd.bdate_range("2024-03-05", periods=8)
SPLIT_BAR = 4  # two new shares for one, so that prices before it are twice as high as they are traded


class Bar(NamedTuple):
    """One bar as it was traded. old: price of today over the price then; day: its number."""

    symbol: str
    date: pd.Timestamp
    day: int
    open: float
    high: float
    low: float
    close: float
    volume: int
    old: float

    @property
    def split(self) -> float:
        return 2.0 if self.day == SPLIT_BAR else 1.0


def bars(symbol: str) -> list[Bar]:
    base = 50.0 if symbol == "AAPL" else 90.0
    prices = []
    for day, date in enumerate(DAYS):
        old = 0.5 if day < SPLIT_BAR else 1.0
        close = (base + day % 3) / old
        prices.append(Bar(symbol, date, day, close - 1, close + 2, close - 2, close, 1000 + day, old))
    return prices


class Example(NamedTuple):
    """Files of a layout. file: name with a place for the ticker, or of all tickers. adjusted: the closes become so."""

    file: str
    head: str
    line: Callable[[Bar], str]
    options: Mapping[str, str | bool] = MappingProxyType({})
    backwards: bool = False
    adjusted: bool = False


def ohlcv(bar: Bar) -> str:
    return f"{bar.open},{bar.high},{bar.low},{bar.close},{bar.volume}"


def nanoseconds(bar: Bar) -> int:
    return int(bar.date.tz_localize("America/New_York").value)


EXAMPLES = {
    "Alpha Vantage, daily adjusted": Example(
        "daily_adjusted_{}.csv",
        "timestamp,open,high,low,close,adjusted_close,volume,dividend_amount,split_coefficient",
        lambda b: f"{b.date:%F},{b.open},{b.high},{b.low},{b.close},{b.close * b.old},{b.volume},0.0,{b.split}",
        backwards=True,
        adjusted=True,
    ),
    "Alpha Vantage, daily": Example(
        "daily_{}.csv", "timestamp,open,high,low,close,volume", lambda b: f"{b.date:%F},{ohlcv(b)}", backwards=True
    ),
    "Tiingo": Example(
        "{}.csv",
        "date,close,high,low,open,volume,adjClose,adjHigh,adjLow,adjOpen,adjVolume,divCash,splitFactor",
        lambda b: (
            f"{b.date:%F}T00:00:00.000Z,{b.close},{b.high},{b.low},{b.open},{b.volume},{b.close * b.old},"
            f"{b.high * b.old},{b.low * b.old},{b.open * b.old},{b.volume / b.old},0.0,{b.split}"
        ),
        adjusted=True,
    ),
    "Sharadar SEP": Example(
        "SEP.csv",
        "ticker,date,open,high,low,close,volume,closeadj,closeunadj,lastupdated",
        lambda b: f"{b.symbol},{b.date:%F},{ohlcv(b)},{b.close * b.old},{b.close},2024-04-01",
        adjusted=True,
    ),
    "Quandl WIKI": Example(
        "WIKI.csv",
        "ticker,date,open,high,low,close,volume,ex-dividend,split_ratio,adj_open,adj_high,adj_low,adj_close,adj_volume",
        lambda b: f"{b.symbol},{b.date:%F},{ohlcv(b)},0.0,{b.split},1,1,1,{b.close * b.old},1",
        adjusted=True,
    ),
    "Yahoo Finance": Example(
        "{}.csv",
        "Date,Open,High,Low,Close,Adj Close,Volume,Dividends,Stock Splits",
        lambda b: f"{b.date:%F} 00:00:00-05:00,{b.open},{b.high},{b.low},{b.close},{b.close * b.old},1000,0.0,0.0",
        adjusted=True,
    ),
    "Stooq, database": Example(
        "{}.us.txt",
        "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>",
        lambda b: f"{b.symbol}.US,D,{b.date:%Y%m%d},000000,{ohlcv(b)},0",
    ),
    "Stooq, site": Example("{}_us_d.csv", "Date,Open,High,Low,Close,Volume", lambda b: f"{b.date:%F},{ohlcv(b)}"),
    "Kaggle, copies of Stooq": Example(
        "{}.us.txt", "Date,Open,High,Low,Close,Volume,OpenInt", lambda b: f"{b.date:%F},{ohlcv(b)},0"
    ),
    "Kaggle, S&P 500": Example(
        "all.csv", "date,open,high,low,close,volume,Name", lambda b: f"{b.date:%F},{ohlcv(b)},{b.symbol}"
    ),
    "FinRL": Example(
        "data.csv",
        ",date,tic,open,high,low,close,volume,day,macd,boll_ub,boll_lb,rsi_30,cci_30,dx_30,close_30_sma,vix,turbulence",
        lambda b: f"{b.day},{b.date:%F},{b.symbol},{ohlcv(b)},1,0.1,2,1,50,3,4,{b.close},20,0",
    ),
    "Nasdaq.com": Example(
        "{}.csv",
        "Date,Close/Last,Volume,Open,High,Low",
        lambda b: f'{b.date:%m/%d/%Y},${b.close},"1,234,567",${b.open},${b.high},${b.low}',
        {"date_format": "%m/%d/%Y"},
        backwards=True,
    ),
    "Alpaca": Example(
        "bars.csv",
        "symbol,timestamp,open,high,low,close,volume,trade_count,vwap",
        lambda b: f"{b.symbol},{b.date:%F} {'05' if b.day < 4 else '04'}:00:00+00:00,{ohlcv(b)},100,{b.close}",
    ),
    "Polygon, flat files": Example(
        "days.csv",
        "ticker,volume,open,close,high,low,window_start,transactions",
        lambda b: f"{b.symbol},{b.volume},{b.open},{b.close},{b.high},{b.low},{nanoseconds(b)},100",
    ),
    "Investing.com": Example(
        "{} Historical Data.csv",
        '\ufeff"Date","Price","Open","High","Low","Vol.","Change %"',
        lambda b: (
            f'"{b.date:%m/%d/%Y}","{b.close}","{b.open}","{b.high}","{b.low}","{"-" if b.day == 1 else "1.2M"}","0.55%"'
        ),
        {"date_format": "%m/%d/%Y"},
        backwards=True,
    ),
    "MetaTrader": Example(
        "{}_Daily_202403050000_202403140000.csv",
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>",
        lambda b: f"{b.date:%Y.%m.%d}\t00:00:00\t{b.open}\t{b.high}\t{b.low}\t{b.close}\t{b.volume}\t0\t3",
    ),
    "own file": Example(
        "export.csv",
        "\ufeffDate;Symbol;Open;High;Low;Close;Volume",
        lambda b: ";".join(
            [f"{b.date:%d.%m.%Y}", b.symbol, *(str(x).replace(".", ",") for x in (b.open, b.high, b.low, b.close)), "9"]
        ),
        {"date_format": "%d.%m.%Y"},
    ),
}


def write(folder: Path, name: str, example: Example) -> Path:
    """Write the files of an example; the folder, or the only file."""
    folder.mkdir(exist_ok=True)
    tickers = [("AAPL",), ("MSFT",)] if "{}" in example.file else [("AAPL", "MSFT")]
    for symbols in tickers:
        rows = [example.line(bar) for day in zip(*map(bars, symbols), strict=True) for bar in day]
        symbol = symbols[0].lower() if ("Stooq" in name and "{}" in example.file) else symbols[0]
        lines = [example.head, *(rows[::-1] if example.backwards else rows)]
        (folder / example.file.format(symbol)).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder if len(tickers) > 1 else folder / example.file


@pytest.mark.parametrize("name", EXAMPLES)
def test_layout_has_tickers_days_prices_and_a_meaning_of_each_column(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    panel = read_file(write(tmp_path / "prices", name, example), **example.options)
    assert panel.symbols == ("AAPL", "MSFT")
    assert panel.times.astype("datetime64[D]").tolist() == DAYS.date.tolist()
    separator = next(mark for mark in ("\t", ";", ",") if mark in example.head)
    columns = [column.strip('\ufeff"') or "Unnamed: 0" for column in example.head.split(separator)]
    assert list(panel.read_as) == columns
    kinds = set(panel.read_as.values())
    assert {"time", "open", "high", "low", "close"} <= kinds
    is_known = panel.tradable
    for column, prices in (("open", panel.open), ("close", panel.close)):
        assert prices is not None
        factors = [[bar.old if example.adjusted else 1.0 for bar in bars(symbol)] for symbol in panel.symbols]
        expected = np.array([[getattr(bar, column) for bar in bars(symbol)] for symbol in panel.symbols])
        np.testing.assert_allclose(prices[is_known], (expected * factors).T[is_known])


def test_every_layout_has_an_example_a_documentation_and_is_recognised() -> None:
    assert set(EXAMPLES) == {layout.name for layout in (*LAYOUTS, OWN_FILE)}
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text()
    for layout in LAYOUTS:
        example = EXAMPLES[layout.name]
        separator = "\t" if "\t" in example.head else ","
        columns = [column.strip('\ufeff"') for column in example.head.split(separator)]
        assert layout_of(columns, example.file.format("aapl").rsplit(".", 1)[0]) is layout
        assert layout.documentation.startswith("https://")
        assert f"]({layout.documentation})" in page


def test_stated_splits_scale_volumes_and_dividends_are_paid_without_the_adjusted_close(tmp_path: Path) -> None:
    example = EXAMPLES["Alpha Vantage, daily adjusted"]
    rows = [example.line(bar) for bar in bars("AAPL")]
    rows[6] = rows[6].replace(",0.0,1.0", ",0.5,1.0")
    path = tmp_path / "daily_adjusted_AAPL.csv"
    path.write_text("\n".join([example.head, *rows]))
    panel = read_file(path)
    assert panel.volume is not None
    np.testing.assert_array_equal(panel.volume[:, 0], [2000, 2002, 2004, 2006, 1004, 1005, 1006, 1007])
    assert panel.read_as["dividend_amount"] is None
    assert panel.read_as["split_coefficient"] == "split"
    traded = read_file(path, adjusted=False)
    assert not traded.adjusted
    assert traded.dividend is not None
    np.testing.assert_array_equal(traded.dividend[:, 0], [0, 0, 0, 0, 0, 0, 0.5, 0])
    np.testing.assert_allclose(traded.close, panel.close)
    assert (traded.read_as["adjusted_close"], traded.read_as["dividend_amount"]) == (None, "dividend")
    path.write_text(path.read_text().replace(",1.0\n", ",-1.0\n"))
    with pytest.raises(DataError, match=r"daily_adjusted_AAPL.csv, line 2: a split is new shares per old one"):
        read_file(path, adjusted=False)


@pytest.mark.slow
def test_dividends_of_the_file_are_reinvested_and_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    head = "timestamp,open,high,low,close,adjusted_close,volume,dividend_amount,split_coefficient\n"
    path = tmp_path / "daily_adjusted_A.csv"
    path.write_text(head + "2024-01-02,10,10,10,10,9,5,0,1\n2024-01-03,9,9,9,9,9,5,1,1\n")
    panel, query = import_prices(path, adjusted=False, dividends="reinvested")
    np.testing.assert_allclose(panel.close[:, 0], [9, 9])
    assert query["dividends"] == "reinvested"
    (tmp_path / "actions.csv").write_text("symbol,date,dividend\nA,2024-01-03,1\n")
    with pytest.raises(DataError, match="states splits or dividends itself; leave out --actions"):
        import_prices(path, actions=tmp_path / "actions.csv")
    stored = CliRunner().invoke(
        app, ["import", str(path), "--name", "a", "--unadjusted", "--dividends", "reinvested", "--json"]
    )
    assert json.loads(stored.stdout)["read_as"]["dividend_amount"] == "dividend"
    assert update_prices("a").update.added_bars == 0


def test_prices_of_providers_that_do_not_adjust_are_stored_as_unadjusted(tmp_path: Path) -> None:
    path = write(tmp_path, "", EXAMPLES["Polygon, flat files"])
    panel = read_file(path)
    assert not panel.adjusted
    assert "Prices of Polygon, flat files are adjusted for neither splits nor dividends." in panel.flaws
    assert read_file(path, adjusted=True).adjusted


def test_adjusted_and_unadjusted_files_of_a_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "", EXAMPLES["Alpha Vantage, daily"])
    (tmp_path / "KO.csv").write_text("date,close\n2024-03-05,1\n")
    with pytest.raises(DataError, match=r"^KO.csv and daily_AAPL.csv are not adjusted alike"):
        read_file(tmp_path)


# ---------------------------------------------------------------------- columns


def test_all_unknown_columns_are_named_at_once_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("date,symbol,close,bid,ask,analyst\n2024-01-02,A,1,1,2,Smith\n2024-01-03,A,1,1,2,Smith\n")
    with pytest.raises(DataError, match=r"unknown columns 'bid', 'ask', 'analyst'; .*--ignore-unknown"):
        read_file(path)
    panel = read_file(path, ignore_unknown=True)
    assert panel.columns == ("close",)
    assert panel.read_as == {
        "date": "time", "symbol": "symbol", "close": "close", "bid": None, "ask": None, "analyst": None,
    }  # fmt: skip
    assert read_as_sentence(panel.read_as) == "date as time; symbol; close; left out: bid, ask, analyst"


HEADERS = {
    "German": "Datum;Eröffnung;Hoch;Tief;Schluss;Volumen",
    "French": "Date;Ouverture;Plus haut;Plus bas;Clôture;Volume",
    "Spanish": "Fecha;Apertura;Máximo;Mínimo;Cierre;Volumen",
    "decomposed": unicodedata.normalize("NFD", "DATUM;ERÖFFNUNG;HOCH;TIEF;SCHLUSS;VOLUMEN"),
}


@pytest.mark.parametrize("language", HEADERS)
def test_german_french_and_spanish_names_are_known(language: str, tmp_path: Path) -> None:
    rows = [f"{bar.date:%d.%m.%Y};{ohlcv(bar).replace(',', ';').replace('.', ',')}" for bar in bars("AAPL")]
    (tmp_path / "SAP.csv").write_text("\n".join([HEADERS[language], *rows]), encoding="utf-8")
    panel = read_file(tmp_path / "SAP.csv", symbol="SAP", date_format="%d.%m.%Y")
    assert list(panel.read_as.values()) == ["time", "open", "high", "low", "close", "volume"]
    assert panel.symbols == ("SAP",)


def test_two_columns_of_one_meaning_are_refused() -> None:
    with pytest.raises(DataError, match="'Close' and 'Schluss', which are both read as close"):
        read_frame(pd.DataFrame({"date": DAYS, "symbol": "A", "Close": 1.0, "Schluss": 2.0}))


def random_bars(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    closes = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    opens = np.roll(closes, 1) * np.exp(rng.normal(0, 0.002, count))
    opens[0] = 50
    highs, lows = np.maximum(opens, closes) * 1.004, np.minimum(opens, closes) * 0.996
    table = pd.DataFrame(np.stack([opens, highs, lows, closes], 1).round(2), columns=["W", "X", "Y", "Z"])
    return table.assign(V=rng.integers(10**5, 10**6, count))


@pytest.mark.parametrize("order", [("W", "X", "Y", "Z", "V"), ("V", "Z", "Y", "X", "W"), ("X", "W", "Z", "Y")])
@pytest.mark.parametrize("backwards", [False, True])
def test_bars_of_one_instrument_are_no_closes_of_tickers(
    order: tuple[str, ...], backwards: bool, tmp_path: Path
) -> None:
    meanings = {"W": "open", "X": "high", "Y": "low", "Z": "close", "V": "volume"}
    table = random_bars(60, seed=1)[list(order)]
    table.insert(0, "Tag", pd.bdate_range("2024-01-01", periods=60))
    table = table[::-1] if backwards else table
    path = tmp_path / "SAP.csv"
    table.to_csv(path, index=False)
    for columns in ("", "Tag=time"):
        with pytest.raises(DataError) as caught:
            read_file(path, columns=columns)
        option = re.search(r"--columns (\S+)", str(caught.value))
        assert option is not None
        assert dict(pair.split("=") for pair in option[1].split(",")) == {
            "Tag": "time", **{column: meanings[column] for column in order}
        }  # fmt: skip
    assert read_file(path, columns=option[1], symbol="SAP").columns == tuple(
        column for column in ("open", "high", "low", "close", "volume") if column in [meanings[x] for x in order]
    )
    assert set(read_file(path, columns={"Tag": "time", "X": "X"}).symbols) == set(order)  # the user says: tickers


def test_closes_of_tickers_are_no_bars() -> None:
    """Of random walks, of share classes at a constant distance, and of real tickers."""
    rng = np.random.default_rng(3)
    walks = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, (40, 240)), 0))
    assert not any(bar_columns(dict(enumerate(walks[:, i : i + 8].T))) for i in range(0, 240, 8))
    classes = walks[:, :1] * np.linspace(0.99, 1.01, 5)
    assert not bar_columns(dict(enumerate(classes.T)))
    closes = Store().load("sample").close
    for first in range(0, len(closes) - 60, 900):
        for n in range(0, closes.shape[1], 8):
            assert not bar_columns(dict(enumerate(closes[first : first + 60, n : n + 8].T)))


def test_words_in_a_wide_file_are_an_unknown_column(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("date;A;B;Firma\n2024-01-02;1,5;2,5;ADS AG\n2024-01-03;1,6;2,6;3M\n")
    with pytest.raises(DataError, match=r"unknown column 'Firma'.*--ignore-unknown"):
        read_file(path)
    assert read_file(path, ignore_unknown=True).read_as == {"date": "time", "A": "close", "B": "close", "Firma": None}


def test_a_renamed_column_keeps_the_layout(tmp_path: Path) -> None:
    name = "Investing.com"
    path = write(tmp_path / name, name, EXAMPLES[name])
    panel = read_file(path, columns={"Price": "close"}, date_format="%m/%d/%Y")
    assert panel.sha256 == read_file(path, date_format="%m/%d/%Y").sha256
    assert panel.read_as["Vol."] == "volume"


def test_volumes_of_zero_are_read_as_nothing(tmp_path: Path) -> None:
    panel = read_file(write(tmp_path / "prices", "MetaTrader", EXAMPLES["MetaTrader"]))
    assert panel.volume is None
    assert panel.read_as["<VOL>"] is None


def test_wide_and_two_level_tables_say_how_they_were_read() -> None:
    frame = pd.DataFrame({"A": [1.0, 2.0], "A Volume": [5, 6]}, index=pd.DatetimeIndex(DAYS[:2], name="date"))
    assert read_frame(frame).read_as == {"time": "time", "A": "close", "A Volume": None}
    levels = pd.concat({"A": frame.rename(columns={"A": "Close", "A Volume": "Volume"})}, axis=1)
    assert read_frame(levels).read_as == {"time": "time", "symbol": "symbol", "Close": "close", "Volume": "volume"}


def test_renamed_columns_keep_their_names_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("Tag,Code,Last\n2024-01-02,A,1\n2024-01-03,A,1\n")
    panel = read_file(path, columns="Tag=date, Code=symbol, Last=close")
    assert panel.read_as == {"Tag": "time", "Code": "symbol", "Last": "close"}


# ---------------------------------------------------------------------- order, files, dates, numbers


def test_a_file_from_the_newest_to_the_oldest_bar_equals_the_reversed_one(tmp_path: Path) -> None:
    rows = [f"{date:%F},{symbol},{price}" for date in DAYS for symbol, price in (("A", 1.5), ("B", 2.5))]
    by_ticker = [row for symbol in "AB" for row in reversed(rows) if f",{symbol}," in row]
    for name, lines in {"forward": rows, "backward": rows[::-1], "by ticker": by_ticker}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["date,symbol,close", *lines]))
    hashes = {read_file(tmp_path / f"{name}.csv").sha256 for name in ("forward", "backward", "by ticker")}
    assert len(hashes) == 1
    (tmp_path / "x.csv").write_text("\n".join(["date,symbol,close", *rows[::-1], rows[0]]))
    with pytest.raises(DataError, match=r"^x.csv, line 18: A has two bars on 2024-03-05"):
        read_file(tmp_path / "x.csv")


def test_notes_beside_prices_are_left_out_and_named(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,1\n2024-01-03,2\n"
    for name, contents in {"A.csv": text, "B.txt": text, "notes.txt": "Downloaded, in May\n", "README.md": "x"}.items():
        (tmp_path / name).write_text(contents)
    panel = read_file(tmp_path)
    assert panel.symbols == ("A", "B")
    assert "Files without prices were left out: README.md, notes.txt." in panel.flaws
    (tmp_path / "A.csv").write_text("close\n1\n")
    with pytest.raises(DataError, match=r"^A.csv has no time column"):
        read_file(tmp_path)
    for name in ("A.csv", "B.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match=r"no file in .* has a column of times: notes.txt$"):
        read_file(tmp_path)


def test_the_name_of_a_single_file_has_the_ticker_of_its_layout(tmp_path: Path) -> None:
    example = EXAMPLES["Stooq, site"]
    for name, symbol in {"brk-b_us_d": "BRK-B", "vod_uk_d": "VOD.UK", "^spx_d": "^SPX"}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([example.head, *(example.line(bar) for bar in bars("AAPL"))]))
        assert read_file(tmp_path / f"{name}.csv").symbols == (symbol,)
    assert read_file(tmp_path / "vod_uk_d.csv", symbol="VOD").symbols == ("VOD",)


def test_dates_that_could_be_read_in_two_ways_are_refused(tmp_path: Path) -> None:
    for name in ("Nasdaq.com", "Investing.com"):
        path = write(tmp_path / name, name, EXAMPLES[name])
        with pytest.raises(DataError, match=r"got '03/14/2024'; .*pass --date-format, %m/%d/%Y"):
            read_file(path)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("12,5", "1.234,5"), [12.5, 1234.5]),
        (("1,234", "12,5"), [1.234, 12.5]),
        (("0,125", "1,250"), [0.125, 1.25]),
    ],
)
def test_decimal_commas_are_found(tmp_path: Path, cells: tuple[str, str], expected: list[float]) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"date;A\n2024-01-02;{cells[0]}\n2024-01-03;{cells[1]}\n")
    assert read_file(path).close[:, 0].tolist() == expected


def test_a_comma_that_may_separate_decimals_or_thousands_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("date;A\n2024-01-02;1,234\n2024-01-03;1,250\n")
    with pytest.raises(DataError, match=r"line 2: A is '1,234', and its comma may separate .*--decimal"):
        read_file(path)
    assert read_file(path, decimal=",").close[:, 0].tolist() == [1.234, 1.25]
    assert read_file(path, decimal=".").close[:, 0].tolist() == [1234, 1250]


def test_minutes_of_stooq_have_their_hours(tmp_path: Path) -> None:
    example = EXAMPLES["Stooq, database"]
    lines = [f"AAPL.US,5,20240305,{hour},1,1,1,1,5,0" for hour in ("093000", "103000", "113000")]
    (tmp_path / "aapl.us.txt").write_text("\n".join([example.head, *lines]))
    panel = read_file(tmp_path / "aapl.us.txt", bar="1h")
    moments = [datetime(2024, 3, 5, hour, 30, tzinfo=UTC).replace(tzinfo=None) for hour in (9, 10, 11)]
    assert panel.times.astype("datetime64[s]").tolist() == moments

"""How providers write prices: the names of their columns, what the closes are adjusted for, where the ticker is.

`LAYOUTS` is the one table of what is known about a provider. A file has the first layout that recognises the names of
its columns, or its own name; otherwise `OWN_FILE`. Names are compared by `label_of`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Meaning = Literal[
    "time", "hours", "symbol", "open", "high", "low", "close", "adj close", "volume", "spread", "dividend", "split",
    "split_close", "sector",
]  # fmt: skip

TIMES = ("time", "date", "datetime", "timestamp", "day")
# What every file may call its columns, also in German, French and Spanish. None: of no use in a panel. Short words that
# are tickers too, such as BAS, are left out.
COMMON_NAMES: Mapping[str, Meaning | None] = {
    **dict.fromkeys((*TIMES, "datum", "fecha"), "time"),
    **dict.fromkeys(("symbol", "ticker", "tic"), "symbol"),
    **{name: name for name in ("open", "high", "low", "close", "volume", "spread", "dividend", "sector")},
    "split close": "split_close",
    **dict.fromkeys(("adj close", "adjusted close", "adjclose"), "adj close"),
    **dict.fromkeys(("eroffnung", "eroeffnung", "eroffnungskurs", "ouverture", "apertura"), "open"),
    **dict.fromkeys(("hoch", "tageshoch", "plus haut", "maximo"), "high"),
    **dict.fromkeys(("tief", "tagestief", "plus bas", "minimo"), "low"),
    **dict.fromkeys(("schluss", "schlusskurs", "cloture", "cierre"), "close"),
    **dict.fromkeys(("volumen",), "volume"),
    **dict.fromkeys(("index", "stock splits", "capital gains", "repaired?"), None),
}
HOURS = "time"  # beside another column of times
ROW_NUMBERS = re.compile(r"unnamed: \d+")


class Adjustment(StrEnum):
    """What the closes of a provider are adjusted for."""

    UNKNOWN = "unknown"
    NOTHING = "neither splits nor dividends"
    SPLITS = "splits but not dividends"
    EVERYTHING = "splits and dividends"


@dataclass(frozen=True)
class Layout:
    """How one provider writes prices.

    signature: labels of the columns by which a file is recognised; if empty, its name must match `file_name`.
    columns: meaning of the columns that have no common name, or another meaning here; None: left out. ignored: pattern
    of further labels that are left out. closes: what the column `close` is adjusted for. file_name: pattern of names
    without suffix, whose group `symbol` is the ticker, in any case and with underscores as dots. market: suffix of
    tickers that is left out. date_format: format of dates from the year on that are not ISO 8601. date_hint: format
    for the message on dates that could be read in two ways. currency: sign of prices. thousands: commas separate
    thousands. units: K, M and B follow numbers. documentation: address of a page of the provider.
    """

    name: str
    signature: frozenset[str] = frozenset()
    columns: Mapping[str, Meaning | None] = field(default_factory=dict)
    ignored: str = ""
    closes: Adjustment = Adjustment.UNKNOWN
    file_name: str = ""
    market: str = ""
    date_format: str | None = None
    date_hint: str = ""
    currency: str = ""
    thousands: bool = False
    units: bool = False
    documentation: str = ""

    def recognises(self, labels: Iterable[str], stem: str) -> bool:
        """True for a file with columns of these labels and a name without suffix `stem`."""
        if self.signature:
            return self.signature <= set(labels)
        return bool(self.file_name and re.fullmatch(self.file_name, stem, re.IGNORECASE))

    def symbol_of_file(self, stem: str) -> str | None:
        """The ticker in the name of a file without its suffix; None if it has none of this layout."""
        match = re.fullmatch(self.file_name, stem, re.IGNORECASE) if self.file_name else None
        return self.symbol(match["symbol"].upper().replace("_", ".")) if match else None

    def symbol(self, text: str) -> str:
        """A ticker as it is called here."""
        return text.removesuffix(self.market)

    def is_time(self, column: object) -> bool:
        """True for the name of a column of times."""
        return self._meaning(label_of(column)) == "time"

    def is_symbol(self, column: object) -> bool:
        """True for the name of a column of tickers."""
        return self._meaning(label_of(column)) == "symbol"

    def _meaning(self, label: str) -> Meaning | None:
        return self.columns[label] if label in self.columns else COMMON_NAMES.get(label)

    def meanings(self, columns: Sequence[str]) -> tuple[dict[str, Meaning | None], tuple[str, ...]]:
        """(meaning of each known column, None if it is left out; the unknown columns)."""
        meanings: dict[str, Meaning | None] = {}
        unknown_columns = []
        for column in columns:
            label = label_of(column)
            if label in self.columns or label in COMMON_NAMES:
                meanings[column] = self._meaning(label)
            elif ROW_NUMBERS.fullmatch(label) or (self.ignored and re.fullmatch(self.ignored, label)):
                meanings[column] = None
            else:
                unknown_columns.append(column)
        times = [column for column in columns if meanings.get(column) == "time"]
        if len(times) > 1:
            hours = next((column for column in times if label_of(column) == HOURS), None)
            if hours is not None:
                meanings[hours] = "hours"
                times.remove(hours)
            for column in times[1:]:
                del meanings[column]
                unknown_columns.append(column)
        return meanings, tuple(column for column in columns if column in set(unknown_columns))


def label_of(column: object) -> str:
    """A name of a column as layouts list it: in small letters without accents or <>, spaces instead of underscores."""
    letters = unicodedata.normalize("NFKD", str(column).strip().strip("<>").casefold().replace("_", " "))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def layout_of(columns: Iterable[object], stem: str = "") -> Layout:
    """The layout of a file with these columns. stem: its name without suffix."""
    labels = {label_of(column) for column in columns}
    return next((layout for layout in LAYOUTS if layout.recognises(labels, stem)), OWN_FILE)


OWN_FILE = Layout("own file")

LAYOUTS = (
    Layout(
        "Alpha Vantage, daily adjusted",
        signature=frozenset({"timestamp", "adjusted close", "dividend amount", "split coefficient"}),
        columns={"dividend amount": "dividend", "split coefficient": "split"},
        closes=Adjustment.NOTHING,
        file_name=r"(?:time_series_)?daily_adjusted_(?P<symbol>.+)",
        documentation="https://www.alphavantage.co/documentation/#dailyadj",
    ),
    Layout(
        "Alpha Vantage, daily",
        closes=Adjustment.NOTHING,
        file_name=r"(?:time_series_)?daily_(?!adjusted_)(?P<symbol>.+)",
        documentation="https://www.alphavantage.co/documentation/#daily",
    ),
    Layout(
        "Tiingo",
        signature=frozenset({"date", "adjclose", "divcash", "splitfactor"}),
        columns={"divcash": "dividend", "splitfactor": "split"},
        ignored="adj(?:open|high|low|volume)",
        closes=Adjustment.NOTHING,
        documentation="https://www.tiingo.com/documentation/end-of-day",
    ),
    Layout(
        "Sharadar SEP",
        signature=frozenset({"ticker", "date", "closeadj", "closeunadj"}),
        columns={"closeadj": "adj close", "closeunadj": None, "lastupdated": None},
        closes=Adjustment.SPLITS,
        documentation="https://data.nasdaq.com/databases/SEP/documentation",
    ),
    Layout(
        "Quandl WIKI",
        signature=frozenset({"ex-dividend", "split ratio"}),
        columns={"ex-dividend": "dividend", "split ratio": "split"},
        ignored="adj (?:open|high|low|volume)",
        closes=Adjustment.NOTHING,
        documentation="https://data.nasdaq.com/databases/WIKIP/documentation",
    ),
    Layout(
        "Yahoo Finance",
        signature=frozenset({"dividends"}),
        columns={"dividends": "dividend"},
        closes=Adjustment.EVERYTHING,
        documentation="https://ranaroussi.github.io/yfinance/reference/api/yfinance.Ticker.history.html",
    ),
    Layout(
        "Stooq, database",
        signature=frozenset({"ticker", "per", "date", "vol", "openint"}),
        columns={"per": None, "vol": "volume", "openint": None},
        market=".US",
        documentation="https://stooq.com/db/h/",
    ),
    Layout(
        "Stooq, site",
        file_name=r"(?P<symbol>[^_]+(?:_[a-z]{2})?)_d",
        market=".US",
        documentation="https://stooq.com/q/d/?s=aapl.us",
    ),
    Layout(
        "Kaggle, copies of Stooq",
        signature=frozenset({"date", "close", "openint"}),
        columns={"openint": None},
        file_name=r"(?P<symbol>.+\.us)",
        market=".US",
        documentation="https://www.kaggle.com/datasets/borismarjanovic/price-volume-data-for-all-us-stocks-etfs",
    ),
    Layout(
        "Kaggle, S&P 500",
        signature=frozenset({"date", "open", "high", "low", "close", "volume", "name"}),
        columns={"name": "symbol"},
        documentation="https://www.kaggle.com/datasets/camnugent/sandp500",
    ),
    Layout(
        "FinRL",
        signature=frozenset({"date", "tic", "close"}),
        columns={
            "day": None,
            "adjcp": "adj close",
            **dict.fromkeys(("macd", "macds", "macdh", "boll", "boll ub", "boll lb", "vix", "turbulence"), None),
        },
        ignored=r"(?:rsi|cci|dx|adx|adxr|atr|wr|vr|cr|mfi|close|open|high|low|volume) \d+(?: (?:sma|ema|roc|smma))?",
        documentation="https://finrl.readthedocs.io/en/latest/index.html",
    ),
    Layout(
        "Nasdaq.com",
        signature=frozenset({"date", "close/last"}),
        columns={"close/last": "close"},
        closes=Adjustment.SPLITS,
        date_hint="%m/%d/%Y",
        currency="$",
        thousands=True,
        documentation="https://www.nasdaq.com/market-activity/quotes/historical",
    ),
    Layout(
        "Alpaca",
        signature=frozenset({"timestamp", "trade count", "vwap"}),
        columns={"trade count": None, "vwap": None},
        documentation="https://docs.alpaca.markets/reference/stockbars",
    ),
    Layout(
        "Polygon, flat files",
        signature=frozenset({"ticker", "window start", "transactions"}),
        columns={"window start": "time", "transactions": None},
        closes=Adjustment.NOTHING,
        documentation="https://polygon.io/docs/flat-files/stocks/day-aggregates",
    ),
    Layout(
        "Investing.com",
        signature=frozenset({"date", "price", "vol.", "change %"}),
        columns={"price": "close", "vol.": "volume", "change %": None},
        closes=Adjustment.SPLITS,
        file_name=r"(?P<symbol>.+?) (?:historical data|stock price history)(?: \(\d+\))?",
        date_hint="%m/%d/%Y or %d/%m/%Y",
        thousands=True,
        units=True,
        documentation="https://www.investing.com/equities/apple-computer-inc-historical-data",
    ),
    Layout(
        "MetaTrader",
        signature=frozenset({"date", "close", "tickvol"}),
        columns={"tickvol": None, "vol": "volume", "spread": None},
        file_name=r"(?P<symbol>.+?)(?:_?daily|_[dhm]\d{1,2})(?:_\d{8,12}_\d{8,12})?",
        date_format="%Y.%m.%d",
        documentation="https://www.metatrader5.com/en/terminal/help/trading_advanced/custom_instruments",
    ),
)

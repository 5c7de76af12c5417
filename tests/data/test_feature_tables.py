"""Tables of features: the value that a bar uses, and files that are refused."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.data import features
from finrl_pod.data.sources.feature_tables import with_tables
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError, DataError, FeatureError, InputError
from finrl_pod.settings.run import TableConfig
from finrl_pod.types import Floats, Panel
from finrl_pod.user_files import keep, kept_files, pinned
from tests.data.panels import panel, random_panel

DAILY = panel(np.full((60, 2), 10.0))  # from 2020-01-01, weekends too
HOURLY = dataclasses.replace(
    DAILY, bar="1h", times=np.datetime64("2020-01-01", "ns") + np.arange(60) * np.timedelta64(1, "h")
)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def attach(text: str, prices: Panel = DAILY, max_age_days: float = 0, file: str = "macro.csv") -> Panel:
    Path(file).write_text(text)
    return with_tables(prices, (TableConfig(file, max_age_days),))


def level(text: str, prices: Panel = DAILY, max_age_days: float = 0) -> Floats:
    return features.compute(attach(text, prices, max_age_days), ("macro.level",))[..., 0]


def changes(values: Floats) -> dict[int, float]:
    """The bars at which a series [T] changes, and its new values; NaN is 0."""
    series = np.nan_to_num(values)
    return {t: float(series[t]) for t in range(len(series)) if t and series[t] != series[t - 1]}


def test_daily_bars_use_a_value_from_the_next_date_until_it_is_too_old() -> None:
    values = level("known_at,level\n2020-02-03,9\n2020-01-06T23:59Z,7\n2020-02-01T00:00Z,8\n", max_age_days=10)
    assert changes(values[:, 0]) == {6: 7.0, 16: 0.0, 32: 8.0, 34: 9.0, 44: 0.0}  # bar 5 is 2020-01-06
    assert np.array_equal(values[:, 0], values[:, 1], equal_nan=True)


def test_times_of_other_zones_count_by_their_date_in_utc() -> None:
    text = "known_at,level\n2020-01-06T20:00-05:00,7\n2020-01-10T01:00+09:00,8\n"
    assert changes(level(text)[:, 0]) == {7: 7.0, 9: 8.0}


def test_bars_within_the_day_use_a_value_after_its_time_and_a_date_once_it_is_over_everywhere() -> None:
    text = "known_at,level\n2020-01-01T05:00Z,7\n2020-01-01T09:30-05:00,8\n2020-01-01,9\n"
    assert changes(level(text, HOURLY, max_age_days=1)[:, 0]) == {6: 7.0, 15: 8.0, 37: 9.0}
    with pytest.raises(DataError, match="line 2: known_at needs a zone for bars of 1h"):
        level("known_at,level\n2020-01-01T09:30,7\n", HOURLY)


def test_values_of_symbols_and_blanks() -> None:
    text = "symbol,known_at,level,other\nS1,2020-01-06,7,\nS1,2020-01-08,,1\nS0,2020-01-07,3,2\n"
    both = features.compute(attach(text), ("macro.level", "macro.other"))
    assert changes(both[:, 0, 0]) == {7: 3.0}
    assert changes(both[:, 1, 0]) == {6: 7.0}
    assert changes(both[:, 1, 1]) == {8: 1.0}


def test_a_value_of_an_earlier_period_does_not_replace_a_later_one() -> None:
    text = (
        "known_at,period,level\n2020-01-06,2019-09-30,7\n2020-01-09,2019-12-31,8\n2020-01-12,2019-09-30,7.5\n"
        "2020-01-15,2019-12-31,8.5\n"
    )
    assert changes(level(text)[:, 0]) == {6: 7.0, 9: 8.0, 15: 8.5}


def test_a_missing_value_leaves_assets_tradable_and_decisions_early() -> None:
    prices = attach("known_at,level\n2020-05-06,7\n2020-06-03,9\n", random_panel(), max_age_days=40)
    market = build_market(prices, ("return_5", "macro.level"), (0, 200))
    without = build_market(random_panel(), ("return_5",), (0, 200))
    assert market.first == without.first == 5
    assert market.tradable.equal(without.tradable)
    assert market.raw_features[5, 0, 1].isnan()
    assert market.features[5, :, 1].tolist() == [0.0] * 6
    # Over time, not across symbols: a value of the whole market is no constant.
    assert market.normaliser.std[1] > 0.5
    assert build_market(prices, ("macro.level",), (0, 50)).normaliser.std == (1.0,)  # known on none of these bars


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("known_at,level\n2020-01-06,7\n06.01.2020,8\n", "line 3: known_at must be a date .* got '06.01.2020'"),
        ("known_at,level\n2020-02-30,7\n", "line 2: known_at must be a date .* got '2020-02-30'"),
        ("known_at,level\n2020-01-06,high\n", "line 2: level must be a number .* got 'high'"),
        ("known_at,level\n2020-01-06,inf\n", "line 2: level must be finite, got 'inf'"),
        ("known_at,level\n2020-01-06,7\n2020-01-06,8\n\n", "line 3: known_at is the same as in line 2"),
        (
            "symbol,known_at,level\nS0,2020-01-06T12:00Z,7\nS0,2020-01-06T07:00-05:00,8\n",
            "line 3: known_at of S0 is the same as in line 2",
        ),
        ("symbol,known_at,level\nS0,2020-01-06,7\n,2020-01-07,7\n", "line 3: the symbol is missing"),
        ("symbol,known_at,level\nX,2020-01-06,7\n", "has no symbol of the prices 'synthetic': it has X"),
        ("known_at,period,level\n2020-01-06,Q3,7\n", "line 2: period must be a date .* got 'Q3'"),
        ("date,level\n2020-01-06,7\n", "lacks the column 'known_at'"),
        ("known_at,symbol\n2020-01-06,S0\n", "lacks a column of values"),
        ("known_at,level\n", "has no rows"),
        ("known_at,a:b\n2020-01-06,7\n", "'a:b' names features and must have no colon"),
        ("known_at,level,level\n2020-01-06,7,8\n", "has the column 'level' twice"),
    ],
)
def test_bad_tables_are_refused_with_the_line(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        attach(text)


def test_bad_settings_are_refused() -> None:
    prices = attach("known_at,level\n2020-01-06,7\n")
    with pytest.raises(InputError, match=r"no file other.csv"):
        with_tables(DAILY, (TableConfig("other.csv"),))
    with pytest.raises(ConfigError, match=r"tables.0.max_age_days .* got -1"):
        with_tables(DAILY, (TableConfig("macro.csv", -1),))
    with pytest.raises(ConfigError, match=r"two of features.tables are named macro"):
        with_tables(DAILY, (TableConfig("macro.csv"), TableConfig("./macro.csv", 5)))
    with pytest.raises(FeatureError, match=r"did you mean macro\.level"):
        features.check(prices, ("macro.levels",))
    with pytest.raises(FeatureError, match=r"a column of macro.csv needs features.tables"):
        features.check(DAILY, ("macro.level",))


def test_columns_of_tables_are_features_of_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = attach("known_at,level\n2020-01-06,7\n")
    assert "macro.level" in features.available(prices)
    assert with_tables(prices, ()).tables == ()
    assert with_tables(DAILY, ()) is DAILY
    monkeypatch.setattr(features, "_FEATURES", dict(features._FEATURES))
    features.register("macro.level")(lambda source: source.close)
    with pytest.raises(FeatureError, match=r"'macro.level' is registered, and a column of a table"):
        features.check(prices, ("macro.level",))


def test_flaws_name_early_values_and_other_symbols() -> None:
    rows = ("S0,2020-01-06,2020-01-06,7", "S0,2020-01-08,2020-01-09,7", "X,2020-01-06,2019-12-31,7")
    prices = attach("\n".join(["symbol,known_at,period,level", *rows]))
    assert [flaw.partition(",")[0] for flaw in prices.flaws] == [
        "macro.csv: 1 of 3 rows are known before their period ends",
        "macro.csv: values of X are not used",
        "macro.csv: there are no values of S1.",
    ]
    assert with_tables(prices, ()).flaws == ()


def test_a_pinned_table_keeps_its_bytes() -> None:
    data = b"\xef\xbb\xbfknown_at,level\r\n2020-01-06,7\r\n"
    Path("macro.csv").write_bytes(data)
    table = pinned(TableConfig("macro.csv", 45))
    digest = hashlib.sha256(data).hexdigest()
    assert table == TableConfig(f"macro@{digest[:16]}.csv", 45)
    assert kept_files(dataclasses.asdict(table)) == {table.file: data.decode()}
    Path("macro.csv").write_text("known_at,level\n2020-01-06,8\n")
    prices = with_tables(DAILY, (table,))
    assert prices.tables[0].sha256 == digest
    assert changes(features.compute(prices, ("macro.level",))[:, 0, 0]) == {6: 7.0, 51: 0.0}
    with pytest.raises(InputError, match="was changed"):
        keep({table.file: "known_at,level\n2020-01-06,8\n"})

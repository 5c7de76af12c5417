"""`finrl-pod data update`: newer prices of files and sources, stored panels that stay, and what is printed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.prices import price_updates
from finrl_pod_app.prices.price_updates import update_prices
from finrl_pod_app.prices.stored_prices import load_run_panel

from finrl_pod.data.panel import between, select
from finrl_pod.data.sources.frames import check_delivered
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError, MissingSymbols
from finrl_pod.settings.run import DataConfig, RunConfig
from finrl_pod.types import Panel
from tests.app.small_run import small_panel

BARS = 440


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    return Store()


def prices(symbols: tuple[str, ...] = (), bars: int | None = None) -> Panel:
    """The small panel without its index."""
    panel = select(dataclasses.replace(small_panel("mine"), benchmark=None), symbols)
    return panel if bars is None else between(panel, None, pd.Timestamp(panel.times[bars - 1]))


class Source:
    """A source of the small panel without some symbols. requests: symbols, start and end of each call."""

    def __init__(self, missing: tuple[str, ...] = ()) -> None:
        self.missing = missing
        self.requests: list[tuple[tuple[str, ...], str, str]] = []

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
        assert bar == "1d"
        self.requests.append((symbols, str(start.date()), str(end.date())))
        check_delivered(symbols, [s for s in prices().symbols if s not in self.missing], "the source")
        return between(prices(symbols), start, end)


@pytest.fixture
def fetched(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    """Store the first bars of a source, and return the source of the newer ones."""

    def make(symbols: tuple[str, ...], missing: tuple[str, ...] = ()) -> Source:
        query = {"source": "yfinance", "symbols": list(symbols), "start": "2020-01-01", "end": "2021-01-29"}
        store.save(prices(symbols, BARS), query)
        source = Source(missing)
        monkeypatch.setattr(price_updates, "open_source", lambda name: {"yfinance": source}[name])
        return source

    return make


def test_a_source_is_asked_for_the_last_stored_bars_and_later_ones(
    store: Store, fetched: Callable[..., Source]
) -> None:
    symbols = prices().symbols
    source = fetched(symbols)
    result = update_prices("mine", today=date(2021, 12, 2))
    assert source.requests == [(symbols, str(prices().times[BARS - 10])[:10], "2021-12-01")]
    assert store.load("mine").sha256 == prices().sha256
    assert result.update.added_bars == len(prices().times) - BARS
    assert store.show("mine").query["end"] == result.manifest.query["end"] == "2021-12-01"
    assert update_prices("mine", today=date(2021, 12, 2)).update.added_bars == 0


def test_symbols_that_a_source_lacks_end_and_are_asked_for_again(store: Store, fetched: Callable[..., Source]) -> None:
    symbols = prices().symbols
    source = fetched(symbols, missing=(symbols[1],))
    cut = str((prices().times[BARS + 15]).astype("datetime64[D]") + 1)
    assert update_prices("mine", today=date.fromisoformat(cut)).update.ended_symbols == (symbols[1],)
    assert [len(request[0]) for request in source.requests] == [len(symbols), len(symbols) - 1]
    source.missing = ()
    result = update_prices("mine", today=date(2021, 12, 2))
    assert source.requests[-1][1] == str(prices().times[BARS - 1])[:10]  # its last bar
    assert result.update.joined_symbols == ()
    assert store.load("mine").close[:, 1].tolist() == prices().close[:, 1].tolist()
    source.missing = symbols
    with pytest.raises(MissingSymbols):
        update_prices("mine", today=date(2021, 12, 2))


def test_added_symbols_join_with_their_history(store: Store, fetched: Callable[..., Source]) -> None:
    *others, last = prices().symbols
    source = fetched(tuple(others))
    result = update_prices("mine", add=(last,), today=date(2021, 12, 2))
    assert source.requests[0][:2] == ((*others, last), "2020-01-01")
    panel = store.load("mine")
    assert (result.update.joined_symbols, panel.symbols[-1]) == ((last,), last)
    assert panel.tradable[:, -1].all()
    assert panel.investable[:, -1].tolist() == [t >= BARS for t in range(len(panel.times))]
    assert last in store.show("mine").query["symbols"]
    before = store.show("mine")
    with pytest.raises(MissingSymbols, match="ZZZ"):
        update_prices("mine", add=("ZZZ",), today=date(2021, 12, 2))
    assert store.show("mine") == before


def test_runs_find_the_prices_that_they_were_made_on(store: Store, fetched: Callable[..., Source]) -> None:
    fetched(tuple(prices().symbols[:-1]))
    selection = prices().symbols[1:3]
    hashes = {(): store.show("mine").sha256, selection: select(store.load("mine"), selection).sha256}
    update_prices("mine", today=date.fromisoformat(str(prices().times[BARS + 9])[:10]))
    update_prices("mine", add=(prices().symbols[-1],), today=date(2021, 12, 2))
    assert store.show("mine").earlier[0].bars == BARS
    for symbols, sha256 in hashes.items():
        config = RunConfig(data=DataConfig("mine", symbols))
        panel = load_run_panel(config, sha256, Path("run"))
        assert (panel.sha256, len(panel.times)) == (sha256, BARS)
    changed_panel = dataclasses.replace(prices(), close=prices().close * 2)
    store.save(changed_panel, store.show("mine").query)
    with pytest.raises(DataError, match="have changed since the run"):
        load_run_panel(RunConfig(data=DataConfig("mine")), hashes[()], Path("run"))


def write(file: Path, panel: Panel, factor: float = 1.0) -> None:
    """A wide file of closes, those of the first symbol times a factor."""
    table = panel.to_frame()
    table.iloc[:, 0] *= factor
    table.set_axis(table.index.astype(str), axis=0).rename_axis("date").to_csv(file)


@pytest.mark.slow
def test_a_file_continues_a_panel_and_a_bad_one_leaves_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    first, *others = prices().symbols
    write(tmp_path / "old.csv", prices(bars=BARS))
    assert call("import", str(tmp_path / "old.csv"), "--name", "mine")[0] == 0
    before = sorted((tmp_path / "store").rglob("*"))
    write(tmp_path / "older.csv", prices(bars=BARS - 5))
    (tmp_path / "text.csv").write_text("date,A\n2021-01-04,5\n2021-01-05,x\n")
    for file, message in (("older.csv", "before the end of the stored prices"), ("text.csv", "A must be a number")):
        code, _, error = call("update", "mine", "--from", str(tmp_path / file))
        assert (code, error.count("\n"), message in error) == (2, 1, True), error
    assert sorted((tmp_path / "store").rglob("*")) == before
    newer = select(between(prices(), pd.Timestamp(prices().times[BARS - 5]), None), [first, *others[1:]])
    write(tmp_path / "newer.csv", newer, 0.25)
    code, text, _ = call("update", "mine", "--from", str(tmp_path / "newer.csv"))
    assert (code, f"{first}: earlier prices times 0.25\n" in text, f"ended: {others[0]}\n" in text) == (0, True, True)
    code, text, _ = call("update", "mine", "--json")  # from the file of the last update
    document: dict[str, Any] = json.loads(text)
    assert (code, document["added"], document["adjusted"], document["ended"]) == (0, 0, {}, [])
    assert document["bars"] == len(prices().times)
    assert store.show("mine").query["file"] == str(tmp_path / "newer.csv")


def test_panels_without_a_source_are_refused(store: Store) -> None:
    with pytest.raises(DataError, match="panel 'sample' is built in"):
        update_prices("sample")
    store.save(prices())
    with pytest.raises(DataError, match="does not say where it came from"):
        update_prices("mine")

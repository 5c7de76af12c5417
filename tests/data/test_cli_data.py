"""`finrl-pod data`: output, stored panels and exit codes of each command; failures store nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.data import app
from finrl_pod_app.prices.price_updates import update_prices
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner, Result
from werkzeug import Request, Response

from finrl_pod.data.store import Store
from finrl_pod.errors import DataError, FetchError, FinrlPodError, SetupError

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
Call = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    return Store()


@pytest.fixture
def call(store: Store) -> Call:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return run


def plain(result: Result) -> Any:
    """The one JSON object on standard output."""
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def fault(result: Result) -> FinrlPodError:
    """The error that the command line reports in one sentence."""
    assert isinstance(result.exception, FinrlPodError), result.exception
    assert "\n" not in str(result.exception)
    assert result.exception.exit_code == 2
    return result.exception


@pytest.mark.slow
def test_list_contains_the_sample_and_imported_panels(call: Call) -> None:
    call("import", str(FIXTURES / "three_wide.csv"), "--name", "mine")
    panels = plain(call("list", "--json"))["panels"]
    listed = [(p["name"], p["builtin"], len(p["symbols"])) for p in panels]
    assert listed == [("sample", True, 20), ("us74", True, 74), ("mine", False, 3)]
    table = call("list").stdout
    assert "8,313" in table
    assert "2024-01-15" in table


@pytest.mark.slow
def test_list_reports_unusable_panels(call: Call, store: Store) -> None:
    call("import", str(FIXTURES / "three_wide.csv"), "--name", "mine")
    (store.root / "mine" / "manifest.json").write_text("{")
    result = call("list")
    assert result.exit_code == 0
    assert "cannot be used" in result.stdout
    assert "is damaged" in result.stdout


@pytest.mark.slow
def test_show_says_how_orders_fill_and_what_was_not_checked(call: Call, tmp_path: Path) -> None:
    closes = " ".join(call("import", WIDE, "--name", "closes").stdout.split())
    assert "fills no opens: orders fill at the next close" in closes
    assert "adjusted assumed adjusted (not checked)" in closes
    assert "assumed not adjusted (not checked)" in call("import", WIDE, "--name", "traded", "--unadjusted").stdout
    (tmp_path / "bars.csv").write_text("date,open,close,adj close\n2024-01-02,1,2,1\n2024-01-03,2,2,1\n")
    bars = call("import", str(tmp_path / "bars.csv"), "--name", "bars", "--symbol", "A").stdout
    assert "orders fill at the next open" in bars
    assert "adjusted yes" in " ".join(call("show", "sample").stdout.split())


def test_show_prints_all_fields(call: Call) -> None:
    text = " ".join(call("show", "sample").stdout.split())
    for message in ("built-in", "AAPL", "price only, no dividends", "hindsight"):
        assert message in text
    shown = plain(call("show", "sample", "--json"))
    assert shown["bars"] == 8313
    assert shown["benchmark"] == {"name": "S&P 500", "price_only": True}
    assert "no panel 'none'" in str(fault(call("show", "none")))


@pytest.mark.slow
def test_import_stores_the_file_with_its_query(call: Call, store: Store) -> None:
    path = str(FIXTURES / "three.csv")
    assert "a gap" in str(fault(call("import", path, "--name", "mine")))
    assert [m.name for m in store.list()] == ["sample", "us74"]
    done = plain(call("import", path, "--name", "mine", "--allow-gaps", "--unadjusted", "--json"))
    assert done["query"] == {"file": path, "bar": "1d", "allow_gaps": True}
    assert done["adjusted"] is False
    panel = store.load("mine")
    assert panel.sha256 == done["sha256"]
    assert not panel.tradable[3, 1]
    assert any("TRB lacks 1 bar" in flaw for flaw in panel.flaws)


@pytest.mark.slow
def test_import_pays_the_dividends_of_a_table_and_repeats_it(call: Call, store: Store, tmp_path: Path) -> None:
    prices, actions = tmp_path / "traded.csv", tmp_path / "actions.csv"
    members = tmp_path / "members.csv"
    prices.write_text("date,A\n2024-01-02,40\n2024-01-03,10\n2024-01-04,11\n2024-01-05,12\n")
    actions.write_text("symbol,date,split,dividend\nA,2024-01-03,4:1,\nA,2024-01-05,,0.5\n")
    members.write_text("symbol,from,to\nA,2024-01-03,\n")
    tables = ("--actions", str(actions), "--members", str(members))
    done = plain(call("import", str(prices), "--name", "mine", *tables, "--json"))
    assert done["query"] | {"members": ""} == {
        "file": str(prices),
        "bar": "1d",
        "allow_gaps": False,
        "actions": str(actions),
        "dividends": "cash",
        "members": "",
    }
    panel = store.load("mine")
    assert panel.dividend is not None
    assert panel.members is not None
    assert not panel.adjusted
    np.testing.assert_array_equal(panel.close[:, 0], [10, 10, 11, 12])
    np.testing.assert_array_equal(panel.dividend[:, 0], [0, 0, 0, 0.5])
    assert update_prices("mine").manifest.sha256 == panel.sha256  # with both tables
    reinvested = ("--dividends", "reinvested", "--name", "total")
    assert plain(call("import", str(prices), "--actions", str(actions), *reinvested, "--json"))["adjusted"] is True
    np.testing.assert_allclose(store.load("total").close[2, 0], 11 - 0.5)
    assert update_prices("total").update.added_bars == 0
    prices.write_text("date,A\n2024-01-04,11\n2024-01-05,12\n2024-01-08,6\n")
    actions.write_text("symbol,date,split,dividend\nA,2024-01-03,4:1,\nA,2024-01-05,,0.5\nA,2024-01-08,2:1,\n")
    assert update_prices("mine").update.price_factors == {"A": 0.5}
    panel = store.load("mine")
    assert panel.members is not None
    assert panel.dividend is not None
    np.testing.assert_array_equal(panel.close[:, 0], [5, 5, 5.5, 6, 6])
    np.testing.assert_array_equal(panel.dividend[:, 0], [0, 0, 0, 0.25, 0])
    np.testing.assert_array_equal(panel.members[:, 0], [False, True, True, True, True])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--actions", "actions.csv", "--adjusted"), "adjust prices as traded"),
        (("--dividends", "reinvested"), "give the table with --actions"),
    ],
)
def test_options_of_actions_that_contradict_are_refused(call: Call, options: tuple[str, ...], message: str) -> None:
    assert message in str(fault(call("import", str(FIXTURES / "three_wide.csv"), "--name", "mine", *options)))


@pytest.mark.parametrize("name", ["../mine", "sample"])
def test_invalid_names_are_rejected_first(call: Call, name: str, tmp_path: Path) -> None:
    assert "name" in str(fault(call("import", str(tmp_path / "missing.csv"), "--name", name)))
    assert "name" in str(fault(call("fetch", *ALPACA, "--symbols", "A", "--name", name)))


WIDE = str(FIXTURES / "three_wide.csv")
OTHER = (WIDE, "--unadjusted")


@pytest.mark.slow
def test_other_prices_are_replaced_only_on_request(call: Call, store: Store) -> None:
    first = call("import", WIDE, "--name", "mine")
    assert (
        "Next: finrl-pod init mine.toml --data mine\nthen: finrl-pod tournament mine.toml --out runs/mine  "
        in first.output
    )
    assert (
        "Next: finrl-pod init x.toml --data x --preset minutes\n"
        in call("import", WIDE, "--name", "x", "--bar", "1m").output
    )
    before = store.show("mine")
    assert "mine was already stored, unchanged" in call("import", WIDE, "--name", "mine").output
    assert store.show("mine") == before
    refused = str(fault(call("import", *OTHER, "--name", "mine")))
    assert "'mine' has other prices (10 bars, 2024-01-02 to 2024-01-15) already" in refused
    assert "--replace" in refused
    assert store.show("mine") == before
    other = call("import", *OTHER, "--name", "mine", "--replace")
    note = other.output[other.output.index("note:") :]
    assert "replaced the earlier prices of mine. To backtest" in note
    assert not store.load("mine").adjusted


@pytest.mark.slow
def test_a_fetch_under_a_taken_name_is_refused_before_the_network(call: Call) -> None:
    call("import", WIDE, "--name", "mine")
    assert "--replace" in str(fault(call("fetch", *ALPACA, "--symbols", "A", "--name", "mine")))


@pytest.mark.slow
def test_a_damaged_panel_can_be_replaced_and_deleted(call: Call, store: Store) -> None:
    call("import", WIDE, "--name", "mine")
    (store.root / "mine" / "manifest.json").write_text("{")
    assert "'mine' has a damaged panel already" in str(fault(call("import", WIDE, "--name", "mine")))
    assert call("import", WIDE, "--name", "mine", "--replace").exit_code == 0
    (store.root / "mine" / "manifest.json").write_text("{")
    assert call("delete", "mine").output == "deleted mine\n"
    assert not (store.root / "mine").exists()


@pytest.mark.slow
def test_delete_says_what_it_means_for_runs(call: Call, store: Store) -> None:
    call("import", WIDE, "--name", "mine")
    call("import", WIDE, "--name", "twin")
    (store.root / "mine" / "notes.txt").write_text("the user's own")
    assert "They are still stored as twin" in call("delete", "mine").output
    assert (store.root / "mine" / "notes.txt").exists()
    assert "no panel 'mine'" in str(fault(call("delete", "mine")))
    assert "built in" in str(fault(call("delete", "us74")))
    sha256 = store.load("twin").sha256
    assert plain(call("delete", "twin", "--json")) == {"deleted": "twin", "sha256": sha256}
    assert not (store.root / "twin").exists()


@pytest.mark.slow
def test_importing_an_invalid_file_keeps_the_old_panel(call: Call, store: Store, tmp_path: Path) -> None:
    call("import", str(FIXTURES / "three_wide.csv"), "--name", "mine")
    before = store.load("mine").sha256
    (tmp_path / "bad.csv").write_text("date,A\n2024-01-02,1\n2024-01-03,-1\n")
    assert "bad.csv, line 3" in str(fault(call("import", str(tmp_path / "bad.csv"), "--name", "mine")))
    assert store.load("mine").sha256 == before


ALPACA = ("--source", "alpaca", "--start", "2024-01-02", "--end", "2024-01-03")


@pytest.fixture
def alpaca(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Closes that the fake Alpaca server returns, by ticker; the same at both bars."""
    prices = {"AAA": 10.0, "BBB": 20.0}
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    monkeypatch.setenv("APCA_API_DATA_URL", httpserver.url_for("").rstrip("/"))

    def answer(request: Request) -> Response:
        bars = {
            s: [{"t": f"2024-01-0{d}T05:00:00Z", **dict.fromkeys("ohlc", prices[s]), "v": 1} for d in (2, 3)]
            for s in request.args["symbols"].split(",")
            if s in prices
        }
        return Response(json.dumps({"bars": bars, "next_page_token": None}))

    httpserver.expect_request("/v2/stocks/bars").respond_with_handler(answer)
    return prices


@pytest.mark.slow
def test_fetch_stores_the_requested_bars(call: Call, store: Store, alpaca: dict[str, float]) -> None:
    done = plain(call("fetch", *ALPACA, "--symbols", "bbb, AAA,", "--name", "two", "--json"))
    assert done["symbols"] == ["BBB", "AAA"]
    assert done["query"] == {
        "source": "alpaca",
        "symbols": ["BBB", "AAA"],
        "start": "2024-01-02",
        "end": "2024-01-03",
        "bar": "1d",
    }
    np.testing.assert_array_equal(store.load("two").close, [[20.0, 10.0]] * 2)
    assert "secret" not in (store.root / "two" / "manifest.json").read_text()


def test_a_fetch_with_missing_tickers_names_them_and_keeps_the_old_panel(
    call: Call, store: Store, alpaca: dict[str, float]
) -> None:
    call("fetch", *ALPACA, "--symbols", "AAA,BBB", "--name", "two")
    before = store.load("two").sha256
    error = fault(call("fetch", *ALPACA, "--symbols", "AAA,CCC,DDD", "--name", "two", "--replace"))
    assert isinstance(error, FetchError)
    assert "for CCC, DDD" in str(error)
    assert store.load("two").sha256 == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--source", "alpaca", "--symbols", ",", "--start", "2024-01-02", "--end", "2024-01-03"), "must name tickers"),
        (("--source", "alpaca", "--symbols", "A", "--start", "2024", "--end", "2024-01-03"), "--start must be a date"),
        (("--source", "alpaca", "--symbols", "A", "--start", "2024-02-02", "--end", "2024-01-03"), "swap the dates"),
        (("--source", "reuters", "--symbols", "A", "--start", "2024-01-02", "--end", "2024-01-03"), "source must be"),
        ((*ALPACA, "--symbols", "A", "--bar", "3d"), "bar must be one of"),
    ],
)
def test_invalid_arguments_of_fetch_are_refused(call: Call, arguments: tuple[str, ...], message: str) -> None:
    error = fault(call("fetch", *arguments, "--name", "x"))
    assert isinstance(error, DataError)
    assert message in str(error)


def test_fetch_without_keys_names_the_variables(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APCA_API_KEY_ID", raising=False)
    monkeypatch.delenv("APCA_API_SECRET_KEY", raising=False)
    error = fault(call("fetch", *ALPACA, "--symbols", "A", "--name", "x"))
    assert isinstance(error, SetupError)
    assert "APCA_API_KEY_ID and APCA_API_SECRET_KEY" in str(error)


@pytest.mark.parametrize("command", ["list", "show", "fetch", "import"])
def test_every_command_has_an_example(call: Call, command: str) -> None:
    assert "Example: finrl-pod data" in " ".join(call(command, "--help").stdout.split())


OWN_SOURCES = """
import numpy as np
import pandas as pd

def closes(symbols, start, end):
    days = pd.bdate_range(start, end)
    return pd.DataFrame(np.linspace(10, 20, len(days))[:, None] * np.ones(len(symbols)), days, list(symbols))

class Frame:
    def fetch(self, symbols, start, end, bar):
        return closes(symbols[:-1], start, end)

class Nothing:
    def fetch(self, symbols, start, end, bar):
        return None

class Empty:
    def fetch(self, symbols, start, end, bar):
        return closes(symbols, start, end).iloc[:0]

class Gaps:
    def fetch(self, symbols, start, end, bar):
        frame = closes(symbols, start, end)
        frame.iloc[5, 0] = np.nan
        return frame

class Offline:
    def fetch(self, symbols, start, end, bar):
        raise ConnectionError("no network")

class Narrow:
    def fetch(self, symbols):
        return None

class Elsewhere:
    def fetch(self, symbols, start, end, bar):
        return closes(symbols, "2000-01-03", "2001-01-03")
"""


def fetch_own(call: Call, folder: Path, name: str) -> Result:
    file = folder / "own_sources.py"
    file.write_text(OWN_SOURCES)
    dates = ("--start", "2015-01-01", "--end", "2015-12-31")
    return call("fetch", "--source", f"{file}:{name}", "--symbols", "A,B,C", *dates, "--name", "own", "--json")


def test_fetch_takes_a_frame_of_a_source_of_ones_own_and_notes_missing_symbols(call: Call, tmp_path: Path) -> None:
    result = fetch_own(call, tmp_path, "Frame")
    assert plain(result)["symbols"] == ["A", "B"]
    assert plain(result)["source"] == "Frame"
    assert "Frame delivered no bars of C" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "must return a Panel or a DataFrame, got NoneType"),
        ("Empty", "returned a DataFrame that cannot be used: "),
        ("Gaps", "return fp.load_prices(frame, allow_gaps=True)"),
        ("Offline", "failed: ConnectionError: no network"),
        ("Narrow", "must have fetch(symbols, start, end, bar): "),
        ("Elsewhere", "panel 'Elsewhere' has no bars from 2015-01-01"),
    ],
)
def test_fetch_tells_faults_of_a_source_of_ones_own(
    call: Call, store: Store, tmp_path: Path, name: str, message: str
) -> None:
    assert message in str(fault(fetch_own(call, tmp_path, name)))
    assert "own" not in [m.name for m in store.list()]

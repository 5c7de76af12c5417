"""Market data API: pages, adjustments as of the simulated time, feeds, latest prices, and faulty bars."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from finrl_pod.types import Panel
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york

DAILY = {"timeframe": "1Day", "start": "2024-01-02T00:00:00Z"}
SPLIT = CorporateAction("AAA", "2024-03-05", new=4, old=1)
DIVIDEND = CorporateAction("AAA", "2024-03-07", kind="dividend", cash=2.5)


def bars(client: Client, **query: Any) -> dict[str, list[dict[str, Any]]]:
    """Bars of all pages, by symbol."""
    found: dict[str, list[dict[str, Any]]] = {}
    parameters = {**DAILY, "symbols": "AAA,BBB,CCC", **query}
    while True:
        answer = client("GET", "/v2/stocks/bars", params=parameters)
        for symbol, page in answer["bars"].items():
            found.setdefault(symbol, []).extend(page)
        if answer["next_page_token"] is None:
            return found
        parameters["page_token"] = answer["next_page_token"]


def closes(client: Client, **query: Any) -> dict[str, float]:
    return {bar["t"][:10]: bar["c"] for bar in bars(client, symbols="AAA", **query)["AAA"]}


def test_bars_equal_the_panel_up_to_the_last_session(client: Client, panel: Panel) -> None:
    found = bars(client)
    rows = int((panel.times < np.datetime64("2024-03-01")).sum())
    assert list(found) == ["AAA", "BBB", "CCC"]
    for n, symbol in enumerate(panel.symbols):
        assert [bar["c"] for bar in found[symbol]] == panel.close[:rows, n].tolist()
    # Midnight in New York: 5:00 in winter.
    assert found["AAA"][-1]["t"] == "2024-02-29T05:00:00Z"


def test_pages_are_filled_symbol_by_symbol(client: Client) -> None:
    answer = client("GET", "/v2/stocks/bars", params={**DAILY, "symbols": "BBB,AAA", "limit": 30})
    assert list(answer["bars"]) == ["AAA"]
    assert len(answer["bars"]["AAA"]) == 30
    assert bars(client, limit=7) == bars(client)


def test_bar_of_an_open_session_grows(client: Client, panel: Panel) -> None:
    client.server.jump(new_york("2024-03-01 12:00"))
    partial = bars(client)["AAA"][-1]
    client.server.jump(new_york("2024-03-01 16:00"))
    complete = bars(client)["AAA"][-1]
    assert partial["t"] == complete["t"] == "2024-03-01T05:00:00Z"
    assert partial["o"] == complete["o"]
    assert partial["h"] <= complete["h"]
    assert partial["v"] < complete["v"]


def test_split_changes_raw_prices_adjusted_bars_and_positions(start_server: StartServer, panel: Panel) -> None:
    client = start_server(Settings(partial=0.0, actions=(SPLIT,)))
    row = int(np.flatnonzero(panel.times == np.datetime64("2024-03-01"))[0])
    client.buy(time_in_force="opg", qty="10")
    client.server.jump(new_york("2024-03-01 16:00"))
    # Before the ex-date bars are not adjusted: raw and adjusted prices are four times the panel's.
    assert closes(client)["2024-03-01"] == pytest.approx(4 * panel.close[row, 0])
    assert closes(client, adjustment="all") == pytest.approx(closes(client))
    before = client("GET", "/v2/positions/AAA")
    client.server.jump(new_york("2024-03-05 08:00"))
    assert closes(client)["2024-03-01"] == pytest.approx(4 * panel.close[row, 0])
    assert closes(client, adjustment="all")["2024-03-01"] == pytest.approx(panel.close[row, 0])
    after = client("GET", "/v2/positions/AAA")
    assert (before["qty"], after["qty"]) == ("10", "40")
    assert float(after["cost_basis"]) == pytest.approx(float(before["cost_basis"]))
    (activity,) = client("GET", "/v2/account/activities/SPLIT")
    assert activity["qty"] == "30"


def test_adjusted_bars_equal_the_panel_after_all_actions(start_server: StartServer, panel: Panel) -> None:
    client = start_server(Settings(partial=0.0, actions=(SPLIT, DIVIDEND)), start=new_york("2024-03-08 18:00"))
    found = closes(client, adjustment="all")
    rows = len(found)
    np.testing.assert_allclose(list(found.values()), panel.close[:rows, 0], rtol=1e-12)
    raw, split = closes(client), closes(client, adjustment="split")
    row = list(raw).index("2024-03-06")
    # On the day before the ex-date: adjusted = raw * (1 - cash / raw).
    assert panel.close[row, 0] == pytest.approx(raw["2024-03-06"] - DIVIDEND.cash)
    assert split["2024-03-01"] == pytest.approx(raw["2024-03-01"] / 4)


def test_corporate_actions_are_filtered_by_ex_date_and_paged(start_server: StartServer) -> None:
    client = start_server(Settings(actions=(SPLIT, DIVIDEND)))
    query = {"symbols": "AAA", "start": "2024-03-01", "end": "2024-03-31"}
    found = client("GET", "/v1/corporate-actions", params=query)["corporate_actions"]
    assert [(a["new_rate"], a["old_rate"], a["ex_date"]) for a in found["forward_splits"]] == [(4, 1, "2024-03-05")]
    assert [a["rate"] for a in found["cash_dividends"]] == [2.5]
    first = client("GET", "/v1/corporate-actions", params={**query, "limit": 1})
    second = client(
        "GET", "/v1/corporate-actions", params={**query, "limit": 1, "page_token": first["next_page_token"]}
    )
    assert [list(first["corporate_actions"]), list(second["corporate_actions"])] == [
        ["forward_splits"],
        ["cash_dividends"],
    ]


def test_split_cancels_the_symbols_open_orders(start_server: StartServer) -> None:
    client = start_server(Settings(partial=0.0, actions=(SPLIT,)))
    order = client.buy(type="limit", limit_price="20", time_in_force="gtc")
    other = client.buy(symbol="BBB", type="limit", limit_price="20", time_in_force="gtc")
    client.server.jump(new_york("2024-03-05 08:00"))
    assert (client.order(order)["status"], client.order(other)["status"]) == ("canceled", "new")


def test_recent_sip_data_needs_a_subscription(start_server: StartServer) -> None:
    client = start_server(Settings(sip=False))
    query = {**DAILY, "symbols": "AAA"}
    assert client("GET", "/v2/stocks/bars", params={**query, "feed": "iex"})["bars"]
    assert "SIP" in client("GET", "/v2/stocks/bars", 403, params={**query, "feed": "sip"})["message"]


def test_latest_trades_and_quotes_are_at_the_price_of_fills(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 10:00"))
    trades = client("GET", "/v2/stocks/trades/latest?symbols=AAA,ZZZ")["trades"]
    quotes = client("GET", "/v2/stocks/quotes/latest?symbols=AAA,ZZZ")["quotes"]
    assert list(trades) == list(quotes) == ["AAA"]
    assert quotes["AAA"]["bp"] < trades["AAA"]["p"] < quotes["AAA"]["ap"]
    order = client.buy(qty="1")
    client.server.jump(new_york("2024-03-01 10:00:01"))
    assert float(client.order(order)["filled_avg_price"]) == pytest.approx(trades["AAA"]["p"], rel=1e-4)


def test_stale_and_faulty_bars(client: Client) -> None:
    edits = [{"symbol": "AAA", "date": "2024-02-28", "fields": {"c": 0}}, {"symbol": "BBB", "fields": {}}]
    client("POST", "/fake/conditions", json={"stale_after": "2024-02-28", "edits": edits})
    found = bars(client)
    assert list(found) == ["AAA", "CCC"]
    assert (found["AAA"][-1]["t"][:10], found["AAA"][-1]["c"]) == ("2024-02-28", 0)


def test_small_panel_of_closes_trades_at_its_close_all_day(start_server: StartServer, panel: Panel) -> None:
    from finrl_pod.data.panel import make_panel

    closes_only = make_panel(panel.times, panel.symbols, {"close": panel.close})
    client = start_server(panel=closes_only)
    row = int(np.flatnonzero(panel.times == np.datetime64("2024-03-01"))[0])
    order = client.buy(time_in_force="opg")
    client.server.jump(new_york("2024-03-01 09:30"))
    assert Decimal(client.order(order)["filled_avg_price"]) == Decimal(repr(float(panel.close[row, 0])))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"symbols": ""}, "symbols is required"),
        ({"timeframe": "1Hour"}, "invalid timeframe"),
        ({"adjustment": "most"}, "invalid adjustment"),
        ({"limit": "10001"}, "invalid limit"),
        ({"start": "soon"}, "invalid start"),
        ({"page_token": "x"}, "invalid page_token"),
        ({"feed": "mine"}, "invalid feed"),
    ],
)
def test_invalid_parameters_are_rejected(client: Client, query: dict[str, str], message: str) -> None:
    assert message in client("GET", "/v2/stocks/bars", 400, params={**DAILY, "symbols": "AAA", **query})["message"]

"""Addresses: fields in query parameters, their names, and what stays out of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from finrl_pod_app.dashboard import pages
from finrl_pod_app.dashboard.pages.address import PARAMETERS
from finrl_pod_app.dashboard.pages.run_list import PICKED
from finrl_pod_app.dashboard.script.main import PAGES
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[2]
PAGES_FOLDER = Path(pages.__file__).parent


def bound_fields() -> Iterator[dict[str, ast.expr]]:
    """Keyword arguments of every field that is bound to the address."""
    for file in PAGES_FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
                if "bind" in keywords:
                    yield keywords


def test_parameters_are_the_bound_fields_without_passwords() -> None:
    keys = set()
    for keywords in bound_fields():
        key = keywords["key"]
        assert isinstance(key, ast.Constant)
        keys.add(key.value)
        assert "type" not in keywords, "a password must not be in the address"
    # The ticked rows of a table are no field.
    assert keys | {PICKED} == {name for parameters in PARAMETERS.values() for name in parameters}
    assert list(PARAMETERS) == list(PAGES)


def test_parameters_are_documented() -> None:
    text = (ROOT / "docs" / "dashboard.md").read_text()
    rows = [
        f"| `/{page if page != 'overview' else ''}` | `{name}` | {meaning} |"
        for page, names in PARAMETERS.items()
        for name, meaning in names.items()
    ]
    assert [row for row in rows if row not in text] == []


def choices() -> None:
    """A page with a run that it chooses by itself and a cost whose default depends on the run."""
    import streamlit as st
    from finrl_pod_app.dashboard.pages.address import BOUND, default_to, follow_default, start_page

    start_page(st.session_state.get("page to open", "compare"))
    default_to("run", "new", ("new", "old"))
    run = st.selectbox("Run", ["new", "old"], index=None, key="run", bind=BOUND)
    cost = {"new": 5, "old": 10}.get(str(run), 0)
    follow_default("cost", run, cost)
    st.number_input("Cost", value=cost, key="cost", bind=BOUND)


def test_the_address_names_what_a_page_chooses_by_itself() -> None:
    app = AppTest.from_function(choices).run()
    assert app.query_params == {"run": "new"}
    assert (app.selectbox[0].value, app.number_input[0].value) == ("new", 5)


def test_the_address_sets_fields_and_ignores_unknown_values() -> None:
    app = AppTest.from_function(choices)
    app.query_params |= {"run": "old", "cost": "7"}
    app.run()
    assert (app.selectbox[0].value, app.number_input[0].value) == ("old", 7)
    app.query_params |= {"run": "none", "cost": "much"}
    app = AppTest.from_function(choices)
    app.query_params |= {"run": "none", "cost": "much"}
    app.run()
    assert not app.exception
    assert (app.selectbox[0].value, app.number_input[0].value) == ("new", 5)


def test_a_default_follows_what_it_depends_on_unless_the_address_sets_the_field() -> None:
    app = AppTest.from_function(choices).run()
    app.query_params["run"] = "old"  # as the browser does
    app.selectbox[0].set_value("old").run()
    assert app.number_input[0].value == 10
    app.query_params["cost"] = "3"
    app.number_input[0].set_value(3).run()
    app.selectbox[0].set_value("new").run()
    assert app.number_input[0].value == 3


def test_another_page_starts_without_the_fields_of_the_last_one() -> None:
    app = AppTest.from_function(choices)
    app.query_params["run"] = "old"
    app.run()
    app.session_state["page to open"] = "audit"
    app.query_params.clear()
    app.run()
    assert app.selectbox[0].value == "new"

"""Every page without data, with a finished run, with damaged files, and with names that contain markup."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions import jobs
from finrl_pod_app.dashboard.pages import overview
from finrl_pod_app.dashboard.script.main import PAGES
from finrl_pod_app.report.columns import format_metric
from finrl_pod_app.report.records import read_report
from finrl_pod_app.report.verdict_text import verdict_paragraph
from finrl_pod_app.setup.output_folder import TEMPORARY
from finrl_pod_app.setup.presets import PRESETS, config_text, for_stored_panel

from finrl_pod.data.store import Store
from finrl_pod.evaluate.metrics import METRIC_BY_NAME
from finrl_pod.promotion.trial_registry import FILE, Look, TrialRegistry

pytestmark = pytest.mark.slow

RESEARCH = [name for name in PAGES if name != "paper"]


def texts(app: Any) -> str:
    """All text of a page outside of tables and figures."""
    kinds = ("title", "markdown", "caption", "info", "warning", "error", "success", "subheader")
    return "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind))


METRIC_HEADINGS = {
    "Annual return (CAGR), %": "annual_return",
    "Sharpe ratio": "sharpe",
    "Turnover, × per year": "turnover",
    "Costs paid": "costs_paid",
}


def numbers(column: Any) -> Any:
    """The numbers in the cells of a table of texts."""
    return column.str.replace(",", "").astype(float)


def static_table(app: Any) -> pd.DataFrame:
    """The first table of a page that does not sort; empty if there is none."""
    bodies = [element.proto.body for element in app.get("html")]
    for body in bodies:
        if body.startswith('<div class="static-table"'):
            head, *rows = ([cell.text or "" for cell in row] for row in ElementTree.fromstring(body).iter("tr"))
            return pd.DataFrame(rows, columns=head)
    return pd.DataFrame()


def file_hashes(folder: Path) -> dict[str, str]:
    """Hash of every file below a folder, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("page", RESEARCH)
def test_page_without_runs(page: str, visit: Callable[..., Any], tmp_path: Path) -> None:
    app = visit(page, tmp_path / "none")
    assert not app.exception
    assert not app.error
    assert app.title[0].value
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("page", RESEARCH)
def test_page_with_a_run_writes_nothing(page: str, visit: Callable[..., Any], finished: Path) -> None:
    before = file_hashes(finished.parent)
    app = visit(page, finished.parent)
    assert not app.exception
    assert not app.error
    assert app.dataframe or app.selectbox or app.table
    assert file_hashes(finished.parent) == before


def test_demo_button_starts_the_quick_preset(
    visit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(jobs, "start", lambda config, runs, name: started.append((config, runs, name)))
    app = visit("overview", tmp_path / "runs")
    app.button(key="demo quick").click().run()
    assert not app.exception
    ((config, runs, name),) = started
    assert (config.tournament.pods, runs, name) == (4, tmp_path / "runs", "demo")


def test_overview_reports_damaged_runs_and_lists_all(visit: Callable[..., Any], finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "intact")
    shutil.copytree(finished, tmp_path / "runs" / "broken")
    (tmp_path / "runs" / "broken" / "config.json").write_text("{")
    app = visit("overview", tmp_path / "runs")
    assert not app.exception
    assert set(app.dataframe[0].value["name"]) == {"intact", "broken"}
    assert any("broken](/run?name=broken) is damaged" in element.value for element in app.markdown)


def test_runs_are_ticked_compared_and_saved(visit: Callable[..., Any], finished: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("first", "second"), start=7):
        shutil.copytree(finished, tmp_path / "runs" / name)
        config = json.loads((finished / "config.json").read_text())
        config["config"]["seed"] = seed
        file = tmp_path / "runs" / name / "config.json"
        file.write_text(json.dumps(config))
        os.utime(file, ns=(0, (finished / "config.json").stat().st_mtime_ns))
    app = visit("overview", tmp_path / "runs", pick=["first", "second"], curves="true", columns=["seed", "Tags"])
    assert not app.exception
    table, differing = (element.value for element in app.dataframe)
    assert list(table.columns) == ["name", "seed", "tags"]
    assert differing.to_dict("records") == [{"setting": "seed", "first": "7", "second": "8"}]
    text = texts(app).replace("\\", "")
    assert "best of 1 look" in text
    assert "on test" in text
    app = visit("compare", tmp_path / "runs", run=["first", "second"])
    assert app.dataframe[0].value.to_dict("records") == [{"setting": "seed", "first": "7", "second": "8"}]


def test_results_without_a_recorded_look_are_not_the_newest(
    visit: Callable[..., Any], finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "state.json").touch()  # trained on after the test
    app = visit("overview", tmp_path / "runs")
    assert not app.exception
    assert "Newest result" not in texts(app)
    app = visit("run", tmp_path / "runs", name="mine")
    assert not app.metric
    assert "not recorded" in texts(app)


def test_the_champion_of_the_paper_demo_is_marked_and_no_result(
    visit: Callable[..., Any], finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "own")
    shutil.copytree(finished, tmp_path / "runs" / "paper" / "champion")
    (tmp_path / "runs" / "paper" / "champion" / TEMPORARY).write_text("{}")  # newer than the other run
    app = visit("overview", tmp_path / "runs")
    assert any("Newest result: [own]" in element.value for element in app.markdown)
    tags = app.dataframe[0].value.set_index("name")["tags"]
    assert list(tags["paper/champion"]) == ["temporary, of paper demo"]
    assert visit("run", tmp_path / "runs").query_params == {"name": "own"}
    assert visit("compare", tmp_path / "runs").query_params["run"] == "own"
    assert any("paper demo" in element.value for element in visit("run", tmp_path / "runs", name="paper/champion").info)


def test_overview_refreshes_with_the_time_of_its_data(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("overview", finished.parent)
    assert any(re.fullmatch(r"As of .* UTC", element.value.replace("\\", "")) for element in app.caption)
    assert overview.REFRESH_INTERVAL <= 30


def test_run_names_are_escaped(visit: Callable[..., Any], finished: Path, tmp_path: Path) -> None:
    name = "<b>x</b>[y](javascript:alert(1))"
    (tmp_path / "runs").mkdir()
    shutil.copytree(finished, tmp_path / "runs" / name.replace("/", "_"))
    (tmp_path / "runs" / name.replace("/", "_") / "state.json").write_text("[]")
    app = visit("overview", tmp_path / "runs")
    assert not app.exception
    assert "<b>" not in texts(app).replace("\\<b\\>", "")
    assert "](javascript" not in texts(app)


def test_comparison_follows_the_cost_slider(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("compare", finished.parent)
    assert not app.exception
    assert not app.dataframe, "test figures are in no table that sorts"
    assert "On test, best of 1 look" in texts(app).replace("\\", "")
    table = static_table(app).set_index("Strategy")
    assert list(table.index) == ["mine", "equal weight", "index"]
    report = json.loads((finished / "report.json").read_text())["test"]["strategies"]
    for name, key in (("mine", "champion"), ("equal weight", "equal_weight"), ("index", "index")):
        for heading, metric in METRIC_HEADINGS.items():
            assert table.loc[name, heading] == format_metric(METRIC_BY_NAME[metric], report[key][metric]), (
                name,
                metric,
            )
    app.slider[0].set_value(50.0).run()
    assert not app.exception
    higher_cost = static_table(app).set_index("Strategy")
    assert (numbers(higher_cost["Costs paid"]) > numbers(table["Costs paid"])).all()
    assert (numbers(higher_cost["Total return, %"]) <= numbers(table["Total return, %"])).all()


@pytest.mark.parametrize(
    "view", ["Drawdown", "Rolling Sharpe", "Monthly returns", "Weights", "Turnover and costs", "Trades"]
)
def test_views_of_a_comparison(view: str, visit: Callable[..., Any], finished: Path) -> None:
    app = visit("compare", finished.parent)
    app.segmented_control(key="view").set_value(view).run()
    assert not app.exception
    assert not app.error


def test_strategy_errors_are_shown(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("compare", finished.parent)
    app.multiselect(key="run").set_value([]).run()
    app.selectbox(key="prices").set_value("other").run()  # a panel without an index
    assert not app.exception
    assert any("index" in error.value for error in app.error)
    assert list(static_table(app)["Strategy"]) == ["equal weight"]


@pytest.mark.parametrize("view", ["Prices", "Availability of bars", "Correlations"])
def test_views_of_the_data(view: str, visit: Callable[..., Any], tmp_path: Path) -> None:
    app = visit("data", tmp_path)
    app.selectbox(key="panel").set_value("main").run()
    app.segmented_control(key="view").set_value(view).run()
    assert not app.exception
    assert not app.error


def test_the_import_form_says_how_a_file_is_written(visit: Callable[..., Any], tmp_path: Path) -> None:
    app = visit("data", tmp_path)
    labels = [field.label for kind in (app.text_input, app.selectbox) for field in kind]
    assert {"Ticker", "Date format", "Decimal sign", "Separator", "Columns"} <= set(labels)


def test_form_sets_the_mandate(visit: Callable[..., Any], tmp_path: Path) -> None:
    app = visit("train", tmp_path)
    app.number_input(key="laptop: mandate.tilt").set_value(0.25)
    app.selectbox(key="laptop: mandate.decide_every").set_value("month").run()
    assert not app.exception
    mandate = tomllib.loads(app.code[0].value)["mandate"]
    assert (mandate["base"], mandate["tilt"], mandate["decide_every"]) == ("equal_weight", 0.25, "month")
    app.selectbox(key="laptop: mandate.base").set_value("none").run()
    assert tomllib.loads(app.code[0].value)["mandate"]["base"] == "none"
    assert not [field for field in app.number_input if "mandate" in field.key]


@pytest.mark.parametrize("preset", ["laptop", "gpu", "quick"])
def test_form_of_a_preset_gives_its_config(visit: Callable[..., Any], tmp_path: Path, preset: str) -> None:
    """Also where the panel is too short for some of its features."""
    app = visit("train", tmp_path)
    (field,) = (box for box in app.selectbox if box.label == "Preset")
    field.select_index([name.partition(":")[0] for name in field.options].index(preset)).run()
    for place, name in enumerate(app.selectbox(key=f"{preset}: data").options):
        app.selectbox(key=f"{preset}: data").select_index(place).run()
        shown = tomllib.loads(app.code[0].value)
        expected = tomllib.loads(config_text(for_stored_panel(PRESETS[preset], Store(), name)))
        assert shown == expected


def test_run_shows_the_paragraph_of_its_verdict(visit: Callable[..., Any], finished: Path) -> None:
    lines = verdict_paragraph(read_report(finished))
    assert "its base" in lines[0]
    app = visit("run", finished.parent, name="mine")
    app.segmented_control(key="view").set_value("Mandate").run()
    assert not app.exception
    tables = [list(table.value.columns) for table in app.table]
    assert ["Against mandate at tilt zero", "Value", "90% interval", "Definition"] in tables
    assert ["Use of the mandate", "Validation", "Test", "Definition"] in tables
    compared = visit("compare", finished.parent)
    for line in lines:
        assert theme.escape_markdown(line) in texts(app)
        assert theme.escape_markdown(line) in texts(compared)


def test_form_rejects_unknown_settings(visit: Callable[..., Any], tmp_path: Path) -> None:
    app = visit("train", tmp_path)
    assert not app.error
    app.text_area[0].set_value("[agent]\nlearning_rat = 1").run()
    assert not app.exception
    assert "learning\\_rate" in app.error[0].value


def test_training_of_a_finished_run(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("run", finished.parent, name="mine")
    app.segmented_control(key="view").set_value("Training").run()
    assert not app.exception
    leaderboard = app.dataframe[0].value
    assert leaderboard["score"].is_monotonic_decreasing
    report = json.loads((finished / "report.json").read_text())
    assert leaderboard["id"].tolist()[0] == report["leaderboard"][0]["id"]


def test_invalid_run_in_the_url_is_ignored(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("run", finished.parent, name="../../etc")
    assert not app.exception
    assert app.selectbox[0].value == "mine"


def test_new_look_needs_confirmation_and_is_recorded(visit: Callable[..., Any], finished: Path, tmp_path: Path) -> None:
    app = visit("compare", finished.parent)
    assert not static_table(app).empty
    assert not (tmp_path / "home").exists(), "the look of the verdict is not recorded again"
    app.date_input[0].set_value(date(2021, 8, 2)).run()
    assert not app.exception
    assert static_table(app).empty, "nothing is shown before the confirmation"
    assert "a new look at it" in app.info[0].value
    assert not (tmp_path / "home").exists()
    app.button(key="compare: look").click().run()
    assert not app.exception
    assert static_table(app)["Strategy"].tolist() == ["mine", "equal weight", "index"]
    manifest = Store().show("main")
    registry = TrialRegistry(tmp_path / "home" / FILE)
    looks = registry.look(Look(manifest.sha256, "another", "2021-08-02", "2021-10-31", "a test"))
    assert looks == 2


def test_audit_runs_on_request(visit: Callable[..., Any], finished: Path) -> None:
    app = visit("audit", finished.parent)
    assert not app.table
    app.button[0].click().run()
    assert not app.exception
    assert {"look\\-ahead", "fills", "data"} <= set(app.table[0].value["Check"])

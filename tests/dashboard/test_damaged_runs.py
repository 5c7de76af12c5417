"""Damaged runs: whatever a file holds, it is named with its reason, and other runs are shown."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.dashboard.queries import damage, runs

from finrl_pod.errors import RunError

pytestmark = pytest.mark.slow


def replace_score(folder: Path) -> None:
    state = json.loads((folder / "state.json").read_text())
    state["leaderboard"][0]["score"] = "lots"
    (folder / "state.json").write_text(json.dumps(state))


def replace_generation(folder: Path) -> None:
    text = (folder / "state.json").read_text()
    state = json.loads(text)
    (folder / "state.json").write_text(json.dumps({**state, "generation": 10**400}))


def add_key(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["config"]["nonsense"] = "lots"
    (folder / "config.json").write_text(json.dumps(config))


def replace_metric(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    report["test"]["strategies"]["champion"]["turnover"] = "lots"
    (folder / "report.json").write_text(json.dumps(report))


def truncate_curves(folder: Path) -> None:
    curves = (folder / "curves.safetensors").read_bytes()
    (folder / "curves.safetensors").write_bytes(curves[:-1])


def replace_by_link(folder: Path) -> None:
    (folder / "kept.json").write_text((folder / "report.json").read_text())
    (folder / "report.json").unlink()
    (folder / "report.json").symlink_to(folder / "kept.json")


def replace_by_pipe(folder: Path) -> None:
    (folder / "report.json").unlink()
    os.mkfifo(folder / "report.json")


def replace_by_folder(folder: Path) -> None:
    (folder / "verdict.json").unlink()
    (folder / "verdict.json").mkdir()


def truncate(name: str, size: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return spoil


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "digits": (replace_generation, "state.json is damaged: it has a number of more than 18 digits"),
    "score": (replace_score, "a number was expected, not 'lots'"),
    "link": (replace_by_link, "report.json is damaged: it is a symbolic link"),
    "pipe": (replace_by_pipe, "report.json is damaged: it is not a regular file"),
    "folder": (replace_by_folder, "verdict.json is damaged: it is not a regular file"),
    "size": (truncate("report.json", 300_000_000), "report.json is damaged: it has 300,000,000 bytes"),
    "page": (truncate("report.html", 100_000_000), "report.html is damaged: it has 100,000,000 bytes"),
    "deep": (
        lambda folder: (folder / "report.json").write_text("[" * 200_000 + "]" * 200_000),
        "report.json is damaged: it is not JSON",
    ),
    "tags": (lambda folder: (folder / "tags.json").write_text("[]"), "tags.json is damaged"),
    "key": (add_key, "config.json is damaged: unknown key nonsense"),
    "metric": (replace_metric, "report.json is damaged: test.strategies.champion.turnover"),
    "curves": (truncate_curves, "curves.safetensors is damaged: it is not complete"),
    "empty-curves": (truncate("curves.safetensors", 0), "curves.safetensors is damaged: it is not complete"),
}


@pytest.fixture(scope="module")
def spoiled(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `good` and a damaged copy of it per kind of damage."""
    root = tmp_path_factory.mktemp("spoiled")
    shutil.copytree(finished, root / "good")
    for name, (spoil, _) in DAMAGE.items():
        shutil.copytree(finished, root / name)
        spoil(root / name)
        os.utime(root / name / "state.json", ns=(0, (finished / "state.json").stat().st_mtime_ns))  # before the verdict
    return root


@pytest.mark.parametrize("name", DAMAGE)
def test_reason_of_the_damage(name: str, spoiled: Path) -> None:
    summary = damage.summarise(runs.open_run(spoiled, name))
    assert DAMAGE[name][1] in summary.error
    assert str(spoiled) not in summary.error


def test_overview_names_every_damaged_run(spoiled: Path, visit: Callable[..., Any]) -> None:
    app = visit("overview", spoiled)
    assert not app.exception
    assert not app.error
    text = " ".join(element.value for element in app.markdown).replace("\\", "")
    for name in DAMAGE:
        assert f"[{name}](/run?name={name}) is damaged" in text
    assert sorted(app.dataframe[0].value["name"]) == sorted(["good", *DAMAGE])


@pytest.mark.parametrize("page", ["run", "compare", "audit"])
@pytest.mark.parametrize("name", ["pipe", "deep"])
def test_pages_say_that_a_run_is_damaged(page: str, name: str, spoiled: Path, visit: Callable[..., Any]) -> None:
    app = visit(page, spoiled, **{"name" if page == "run" else "run": name})
    assert not app.exception
    if page == "run":
        assert f"{name} is damaged" in app.error[0].value.replace("\\", "")
    else:  # damaged runs cannot be chosen
        assert not app.error
        assert name not in (app.multiselect[0].options if page == "compare" else app.selectbox[0].options)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_part_hides_no_other(name: str, spoiled: Path, visit: Callable[..., Any]) -> None:
    app = visit("run", spoiled, name=name)
    assert not app.exception
    assert f"{name} is damaged" in app.error[0].value.replace("\\", "")
    assert "Report" in [header.value for header in app.header]
    figures = {metric.label: metric.value for metric in app.metric}
    if name not in ("link", "pipe", "size", "deep"):  # the report is readable
        report = json.loads((spoiled / "good" / "report.json").read_text())
        assert figures["Sharpe ratio"] == f"{report['test']['strategies']['champion']['sharpe']:.2f}"
    if name not in ("link", "pipe", "size", "deep", "folder"):
        assert "Trials" in figures  # of the verdict
    if name == "metric":
        assert figures["Turnover"] == "–"


def test_damaged_runs_are_no_result(spoiled: Path, visit: Callable[..., Any]) -> None:
    app = visit("overview", spoiled)
    newest = [element.value for element in app.markdown if "Newest result" in element.value]
    assert newest == ["**Newest result: [good](/run?name=good)**"]


def test_files_of_runs_are_read_up_to_a_size(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert runs.read_object(file) == {"a": 1}
    with pytest.raises(RunError, match="at most 4 are read"):
        runs.read_object(file, max_bytes=4)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(RunError, match="symbolic link"):
        runs.read_bytes(tmp_path / "link", 100)
    with pytest.raises(RunError, match="is missing"):
        runs.read_object(tmp_path / "none")
    with pytest.raises(RunError, match="not a regular file"):
        runs.read_object(tmp_path)


def test_names_do_not_follow_links(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("link", "link/../mine", "mine/", "mine/.", "a\0b"):
        with pytest.raises(RunError, match="no run"):
            runs.open_run(tmp_path, name)

"""The registry counts every trial once, survives deleted folders, and supports concurrent processes."""

from __future__ import annotations

import dataclasses
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.data.store import Store
from finrl_pod.errors import SetupError
from finrl_pod.files import home
from finrl_pod.promotion.dataset_fingerprint import is_demonstration
from finrl_pod.promotion.trial_registry import FILE, Look, Trial, TrialRegistry
from finrl_pod.promotion.verdict import Rule, Statistics, TrialCounts, Verdict
from finrl_pod.types import Panel
from tests.data.panels import random_panel

DATA = "d" * 64
FIRST, LAST = "2016-01-04", "2018-12-21"


@pytest.fixture
def registry(tmp_path: Path) -> TrialRegistry:
    return TrialRegistry(tmp_path / "deep" / FILE)


def trial(agent: str, seed: int = 0, bars: int = 200, **changes: object) -> Trial:
    excess = np.random.default_rng([seed, *agent.encode()]).normal(0, 0.01, bars)
    values = {"agent": agent, "seed": seed, "generation": 0, "first": FIRST, "last": LAST, "excess": excess}
    return Trial(**{**values, **changes})  # type: ignore[arg-type]


def look(subject: str, first: str = "2019-01-02", last: str = "2022-12-28", data: str = DATA) -> Look:
    return Look(data, subject, first, last, "a champion")


def verdict_with(reason: str) -> Verdict:
    rule = Rule(name="edge", value=0.5, limit=0.05, passed=False, sentence=reason)
    counts = TrialCounts(raw=1, clustered=1, runs=1)
    return Verdict(
        promoted=False, reasons=(reason,), rules=(rule,), trials=counts, looks=1, edge=None, statistics=Statistics()
    )


def test_every_trial_of_every_run_is_counted(registry: TrialRegistry) -> None:
    registry.add(DATA, "a", [trial("g00s00"), trial("g00s01"), trial("g01s00")])
    registry.add(DATA, "b", [trial("g00s00", 1)])
    registry.add("e" * 64, "a", [trial("g00s00")])
    counts = registry.counts(DATA)
    assert (counts.raw, counts.runs) == (4, 2)
    assert TrialRegistry(registry.path).counts(DATA) == counts  # a second object of the same file
    assert registry.counts("f" * 64) == TrialCounts(0, 0, 0)


def test_repeated_trials_are_counted_once(registry: TrialRegistry) -> None:
    for _ in range(3):
        registry.add(DATA, "a", [trial("g00s00"), trial("g00s01")])
    assert registry.counts(DATA).raw == 2


def test_clusters_are_counted_per_period_and_diverged_trials_as_one(registry: TrialRegistry) -> None:
    factors = np.random.default_rng(0).normal(0, 0.01, (300, 2))
    noise = np.random.default_rng(1).normal(0, 0.002, (300, 10))
    like = [trial(f"a{i}", excess=factors[:, i % 2] + noise[:, i]) for i in range(10)]
    registry.add(DATA, "a", like)
    assert registry.counts(DATA) == TrialCounts(10, 2, 1)
    registry.add(DATA, "b", [trial(f"b{i}", excess=None) for i in range(4)])
    assert registry.counts(DATA) == TrialCounts(14, 3, 2)
    # Equal returns of another period form another cluster.
    registry.add(DATA, "c", [trial("c0", excess=factors[:, 0], last="2018-12-28")])
    assert registry.counts(DATA) == TrialCounts(15, 4, 3)


def test_looks_count_once_per_subject_and_only_with_overlapping_days(registry: TrialRegistry) -> None:
    assert registry.look(look("a")) == 1
    assert registry.look(look("a")) == 1
    assert registry.look(look("b")) == 2
    assert registry.look(look("c", "2022-06-01", "2023-06-01")) == 3  # overlaps with both
    assert registry.look(look("d", "2023-07-01", "2024-06-01")) == 1
    assert registry.look(look("e", data="e" * 64)) == 1
    assert registry.look(look("a")) == 1  # an earlier look does not count later ones
    (listed,) = [entry for entry in registry.data_sets() if entry.data_sha256 == DATA]
    # d begins after c ends
    assert [(one.number, one.so_far) for one in listed.looks] == [(1, 3), (2, 3), (3, 3), (1, 1)]


def test_looks_at_the_same_market_count_together(registry: TrialRegistry) -> None:
    returns = np.random.default_rng(3).normal(0, 0.01, (400, 4)) + np.random.default_rng(4).normal(0, 0.02, (400, 1))
    times = np.arange("2019-01-01", 400, dtype="datetime64[D]").astype("datetime64[ns]")
    close = 100 * np.exp(np.cumsum(returns, 0))
    full = Panel(times, tuple("ABCD"), close, np.isfinite(close))
    later = Panel(times[1:], tuple("ABCD"), close[1:], np.isfinite(close[1:]))
    other = Panel(times, tuple("ABCD"), close[::-1].copy(), np.isfinite(close))

    def look_count(subject: str, panel: Panel, first: str = "2019-06-01", last: str = "2019-12-31") -> int:
        return registry.look(look(subject, first, last, panel.sha256), panel)

    new = look("", "2019-06-01", "2019-12-31", full.sha256)
    assert registry.count_looks(new, full) == 0
    assert look_count("a", full) == 1
    assert registry.count_looks(dataclasses.replace(new, data=later.sha256), later) == 1  # of the same market
    assert registry.count_looks(dataclasses.replace(new, data=other.sha256), other) == 0
    assert look_count("b", later) == 2
    assert look_count("a", later) == 2  # the same subject on an updated panel
    assert look_count("c", other) == 1
    assert look_count("d", later, "2020-01-01", "2020-02-01") == 1  # no look at these days yet
    assert look_count("e", full) == 3
    assert look_count("a", full) == 1
    same = {entry.data_sha256: entry.same_market for entry in registry.data_sets()}
    assert same == {full.sha256: (later.sha256[:12],), later.sha256: (full.sha256[:12],), other.sha256: ()}


@pytest.mark.slow
def test_first_look_at_test_years_of_a_built_in_panel_is_the_second(registry: TrialRegistry) -> None:
    sample = Store().load("sample")
    some = dataclasses.replace(
        sample,
        symbols=sample.symbols[:3],
        tradable=sample.tradable[:, :3],
        sectors=None,
        **{name: getattr(sample, name)[:, :3] for name in sample.columns},
    )
    stored = dataclasses.replace(sample, name="mine")
    other = dataclasses.replace(random_panel(0, bars=60), name="sample")  # other symbols
    for number, panel in enumerate((sample, some, stored)):
        fresh = TrialRegistry(registry.path.with_name(f"{number}.sqlite"))
        new = look("a", data=panel.sha256)
        assert fresh.count_looks(new, panel) == 1
        assert (fresh.look(new, panel), fresh.count_looks(new, panel)) == (2, 2)
        assert fresh.look(new, panel) == 2
        assert fresh.look(look("b", data=panel.sha256), panel) == 3
        assert fresh.look(look("a", "2017-01-03", "2018-12-28", panel.sha256), panel) == 1  # validation years
        (entry,) = fresh.data_sets()
        numbers = [(row.number, row.what) for row in entry.looks]
        assert numbers[:2] == [(1, "development of finrl_pod"), (2, "a champion")]
    assert registry.look(look("a", data=other.sha256), other) == 1
    assert [is_demonstration(panel) for panel in (sample, some, stored, other)] == [True, True, False, False]


def test_looks_without_a_fingerprint_count_only_for_the_same_panel(registry: TrialRegistry) -> None:
    close = 100 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, (400, 2)), 0))
    times = np.arange("2019-01-01", 400, dtype="datetime64[D]").astype("datetime64[ns]")
    panel = Panel(times, ("A", "B"), close, np.isfinite(close))
    assert registry.look(look("a", data=panel.sha256)) == 1
    with sqlite3.connect(registry.path) as database:
        database.execute("DROP TABLE outlines")
    later = Panel(times[1:], ("A", "B"), close[1:], np.isfinite(close[1:]))
    assert registry.look(look("b", data=later.sha256), later) == 1
    assert registry.look(look("c", data=panel.sha256), panel) == 3  # looks at this panel and at the same market


def test_first_verdict_is_kept(registry: TrialRegistry) -> None:
    registry.look(look("a"))
    assert registry.verdict(look("a")) is None
    first = verdict_with("a reason")
    assert registry.save_verdict(look("a"), first) == first
    assert registry.save_verdict(look("a"), verdict_with("another reason")) == first
    registry.look(look("b"))
    assert registry.verdict(look("a")) == first
    assert registry.verdict(look("b")) is None


def test_a_registry_that_cannot_be_written_is_found_before_work_is_lost(registry: TrialRegistry) -> None:
    registry.check_writable()
    assert registry.data_sets() == []
    with sqlite3.connect(registry.path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (0,)
    database.close()
    with pytest.raises(SetupError, match="set FINRL_POD_HOME to another folder"):
        TrialRegistry(registry.path / "below a file" / FILE).check_writable()


def test_a_registry_without_room_is_found_before_work_is_lost(
    registry: TrialRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(SetupError, match="No space left on device; set FINRL_POD_HOME"):
        registry.check_writable()


def test_list_of_data_sets(registry: TrialRegistry) -> None:
    registry.add(DATA, "a", [trial("g00s00")])
    registry.look(look("x", data="e" * 64))
    by_sha256 = {entry.data_sha256: entry for entry in registry.data_sets()}
    assert by_sha256[DATA].trials == 1
    assert by_sha256[DATA].looks == ()
    assert by_sha256["e" * 64].trials == 0
    (recorded,) = by_sha256["e" * 64].looks
    assert (recorded.first, recorded.last, recorded.what) == ("2019-01-02", "2022-12-28", "a champion")


def test_data_sets_are_labelled_by_their_names_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    registry, store = TrialRegistry(tmp_path / FILE), Store()
    panel = dataclasses.replace(random_panel(0, bars=60), name="first")
    digest = panel.sha256
    registry.look(look("a", data=digest), panel)
    assert [entry.name for entry in registry.data_sets()] == [digest[:12]]
    store.save(dataclasses.replace(panel, name="again"))
    store.save(panel)
    assert [entry.name for entry in registry.data_sets()] == ["again, first"]


def test_listed_looks_have_the_numbers_that_were_returned(registry: TrialRegistry) -> None:
    looks = [registry.look(look(name)) for name in ("a", "b", "a", "c")]
    elsewhere = registry.look(look("a", data="e" * 64))
    by_sha256 = {entry.data_sha256: entry for entry in registry.data_sets()}
    assert [row.number for row in by_sha256[DATA].looks] == [looks[0], looks[1], looks[3]] == [1, 2, 3]
    assert [row.number for row in by_sha256["e" * 64].looks] == [elsewhere] == [1]


WRITER = """
import sys
from pathlib import Path
from finrl_pod.promotion.trial_registry import Look, TrialRegistry, Trial
registry = TrialRegistry(Path(sys.argv[1]))
for i in range(12):
    registry.add("d" * 64, sys.argv[2], [Trial(f"g{i}", 0, i, "a", "b")])
    registry.look(Look("d" * 64, f"{sys.argv[2]} {i}", "2019", "2020", "w"))
"""


@pytest.mark.slow
def test_concurrent_writes_are_all_recorded(registry: TrialRegistry) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(registry.path), name], stderr=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for writer in writers:
        _, error = writer.communicate(timeout=120)
        assert writer.returncode == 0, error.decode()
    assert registry.counts(DATA).raw == 24
    assert registry.look(Look(DATA, "last", "2019", "2020", "w")) == 25


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    assert home() == tmp_path
    assert TrialRegistry().path == tmp_path / FILE
    monkeypatch.delenv("FINRL_POD_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert home().name == "finrl-pod"


def test_unusable_registry_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database, but long enough to be taken for a damaged one" * 20)
    with pytest.raises(SetupError, match=r"cannot use the registry of trials .*; set FINRL_POD_HOME to"):
        TrialRegistry(tmp_path / FILE).counts(DATA)
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot use the registry"):
        TrialRegistry(tmp_path / "file" / FILE).counts(DATA)


def test_a_baseline_that_is_traded_after_a_test_is_a_look(registry: TrialRegistry) -> None:
    panel = random_panel()
    registry.log_deployment("momentum_12_1", panel.symbols)  # nothing was tested
    assert not registry.path.exists()
    tested = Look(panel.sha256, "a", FIRST, LAST, "a champion")
    registry.look(tested, panel)
    for symbols, count in ((("UNKNOWN",), 1), (panel.symbols, 2), (panel.symbols, 2)):
        registry.log_deployment("momentum_12_1", symbols)
        assert registry.count_looks(tested, panel) == count
    assert [entry.what for entry in registry.data_sets()[0].looks] == ["a champion", "deployment of momentum_12_1"]

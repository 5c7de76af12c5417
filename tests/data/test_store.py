"""The panel store: exact round trips, atomic writes, and no access outside its root."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data import built_in_panels as sample
from finrl_pod.data.panel import make_panel
from finrl_pod.data.store import BUILT_IN, MANIFESTS, Store, describe
from finrl_pod.errors import DataError, SetupError
from finrl_pod.types import Benchmark, Panel
from tests.data.panels import random_panel


def small_panel(name: str = "mine", seed: int = 0) -> Panel:
    return dataclasses.replace(random_panel(seed, bars=60), name=name, flaws=("A flaw.",), source="synthetic")


def prices_of(store: Store, name: str) -> Path:
    return store.root / name / store.show(name).file


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), adjusted=st.booleans(), benchmark=st.booleans())
def test_panels_are_loaded_exactly_as_saved(
    tmp_path_factory: pytest.TempPathFactory, seed: int, adjusted: bool, benchmark: bool
) -> None:
    panel = dataclasses.replace(small_panel(seed=seed), adjusted=adjusted, volume=None)
    panel = panel if benchmark else dataclasses.replace(panel, benchmark=None)
    store = Store(tmp_path_factory.mktemp("store"))
    manifest = store.save(panel, {"symbols": ["A", "B"]})
    loaded = store.load("mine")
    assert loaded.sha256 == panel.sha256 == manifest.sha256
    for name in ("symbols", "bar", "name", "source", "flaws", "adjusted", "columns"):
        assert getattr(loaded, name) == getattr(panel, name)
    np.testing.assert_array_equal(loaded.close, panel.close)
    assert (loaded.benchmark is None) == (panel.benchmark is None)
    if loaded.benchmark is not None and panel.benchmark is not None:
        assert loaded.benchmark.price_only == panel.benchmark.price_only


def test_the_manifest_records_the_source(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(small_panel(), {"source": "synthetic", "start": "2020-01-01"})
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["query"] == {"source": "synthetic", "start": "2020-01-01"}
    assert manifest["source"] == "synthetic"
    assert manifest["adjusted"] is True
    assert manifest["flaws"] == ["A flaw."]
    assert len(manifest["sha256"]) == len(manifest["file_sha256"]) == 64
    assert manifest["created"].endswith("+00:00")


def test_saving_again_replaces_the_price_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2):
        store.save(small_panel(seed=seed))
    assert store.load("mine").sha256 == small_panel(seed=2).sha256
    assert len(list((tmp_path / "mine").iterdir())) == 2


def test_load_retries_if_the_prices_are_replaced_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = Store(tmp_path), Path.read_bytes
    store.save(small_panel(seed=1))
    pending = [small_panel(seed=2)]

    def read_late(path: Path) -> bytes:
        if path.suffix == ".parquet" and pending:
            store.save(pending.pop())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    assert store.load("mine").sha256 == small_panel(seed=2).sha256


@pytest.mark.slow
def test_a_program_may_exit_right_after_loading(tmp_path: Path) -> None:
    """An Arrow thread that is still running at exit sometimes aborts the interpreter."""
    Store(tmp_path).save(small_panel())
    code = "import sys; from finrl_pod.data.store import Store; Store(sys.argv[1]).load('mine')"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0, 0]


def test_a_damaged_sample_does_not_hide_other_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sp500_dataset.csv.gz").write_bytes(
        (sample.SAMPLE_FOLDER / "sp500_dataset.csv.gz").read_bytes()[:100_000]
    )
    Store(tmp_path / "store").save(small_panel())
    monkeypatch.setattr(sample, "SAMPLE_FOLDER", tmp_path)
    listed = Store(tmp_path / "store").list()
    assert [m.name for m in listed] == ["sample", "us74", "mine"]
    with pytest.raises(SetupError, match="is missing or damaged: install finrl-pod again"):
        Store(tmp_path / "store").load("sample")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_the_old_panel_is_kept_if_a_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    store = Store(tmp_path)
    store.save(small_panel(seed=1))
    renames = iter(range(1, 10))
    replace = os.replace

    def failing(source: str, target: str) -> None:
        if next(renames) == fails_at:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(DataError, match=r"cannot write to .*No space left on device"):
        store.save(small_panel(seed=2))
    monkeypatch.undo()
    assert store.load("mine").sha256 == small_panel(seed=1).sha256
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("damage", ["truncate", "alter", "empty"])
def test_truncated_or_altered_files_raise_data_error(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    store.save(small_panel())
    path = prices_of(store, "mine")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"truncate": data[: len(data) // 2], "alter": data, "empty": b""}[damage])
    with pytest.raises(DataError, match=r"was truncated or altered .*: fetch or import 'mine' again"):
        store.load("mine")


def test_missing_files_and_damaged_manifests_do_not_hide_other_panels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("a", "b", "c"):
        store.save(small_panel(name))
    prices_of(store, "a").unlink()
    with pytest.raises(DataError, match=r"cannot read .*fetch or import 'a' again"):
        store.load("a")
    (tmp_path / "b" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is damaged: fetch or import"):
        store.load("b")
    listed = store.list()
    assert [m.name for m in listed] == ["sample", "us74", "a", "b", "c"]
    assert "damaged" in listed[3].fault
    assert store.load("c").sha256 == small_panel("c").sha256


def test_a_wrong_manifest_is_detected(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(small_panel())
    path = tmp_path / "mine" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "adjusted": False}))
    with pytest.raises(DataError, match="does not match the sha256 of its manifest"):
        store.load("mine")
    path.write_text(json.dumps({**manifest, "symbols": ["NONE"]}))
    with pytest.raises(DataError, match="does not match its manifest"):
        store.load("mine")
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(DataError, match="has format 99"):
        store.load("mine")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "a\x00b", "x" * 65, "a\n"])
def test_invalid_panel_names_are_rejected(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "root")
    for call in (lambda: store.save(small_panel(name)), lambda: store.load(name), lambda: store.show(name)):
        with pytest.raises(DataError, match="a panel's name has letters"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_manifest_cannot_point_outside_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    store.save(small_panel())
    path = store.root / "mine" / "manifest.json"
    manifest = json.loads(path.read_text())
    os.rename(prices_of(store, "mine"), tmp_path / "outside.parquet")
    path.write_text(json.dumps({**manifest, "file": "../../outside.parquet"}))
    with pytest.raises(DataError, match="cannot read"):
        store.load("mine")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample", "us74"])
def test_built_in_panels_are_always_available_and_their_names_are_reserved(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "nothing")
    assert [m.name for m in store.list()] == ["sample", "us74"]
    assert all(m.builtin for m in store.list())
    assert store.show(name).sha256 == store.load(name).sha256
    with pytest.raises(DataError, match="reserved for the built-in panel"):
        store.save(small_panel(name))


def test_an_unknown_name_lists_the_available_panels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(small_panel("mine"))
    with pytest.raises(DataError, match=r"no panel 'other' in .*, available are sample, us74, mine: .*data fetch"):
        store.load("other")
    with pytest.raises(DataError, match="did you mean mine"):
        store.load("Mine2")


def test_an_invalid_panel_is_not_stored(tmp_path: Path) -> None:
    panel = small_panel()
    close = panel.close.copy()
    close[3, 0] = -1.0
    with pytest.raises(DataError, match="panel 'mine' is not stored: close of S0"):
        Store(tmp_path).save(dataclasses.replace(panel, close=close))
    assert not list(tmp_path.iterdir())


def test_a_root_that_is_a_file_raises_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write to .*set FINRL_POD_DATA"):
        Store(tmp_path / "file").save(small_panel())


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))
    assert Store().root == tmp_path
    monkeypatch.delenv("FINRL_POD_DATA")
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    assert Store().root == tmp_path / "home" / "data"
    monkeypatch.delenv("FINRL_POD_HOME")
    assert "finrl-pod" in str(Store().root)


def test_intraday_panels_keep_their_times(tmp_path: Path) -> None:
    times = np.datetime64("2020-01-01T14:30", "ns") + np.arange(5).astype("timedelta64[m]")
    benchmark = Benchmark("I", np.ones(5), price_only=False)
    panel = make_panel(times, ["A"], {"close": np.ones((5, 1))}, bar="1m", name="minutes", benchmark=benchmark)
    store = Store(tmp_path)
    manifest = store.save(panel)
    assert (manifest.start, manifest.end) == ("2020-01-01T14:30Z", "2020-01-01T14:34Z")
    assert store.load("minutes").sha256 == panel.sha256


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_manifests_of_built_in_panels_describe_them(name: str) -> None:
    described = describe(BUILT_IN[name](), builtin=True)
    assert (MANIFESTS / f"{name}.json").read_text() == json.dumps(described.to_dict(), indent=1) + "\n"
    assert Store().show(name) == described

"""Damaged files: what reads them succeeds or raises an error of the project, with a message, and nothing else.

Every file of corpus/ is read as well: inputs that once failed, or were written to. New inputs: `make fuzz`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.setup.presets import config_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finrl_pod.data.sources.files import read_file
from finrl_pod.errors import FinrlPodError
from finrl_pod.paper import settings as paper_settings
from finrl_pod.paper.journal.schema import metadata
from finrl_pod.paper.journal.store import Store as Journal
from finrl_pod.settings import run as run_settings
from finrl_pod.tournament import snapshots
from tests.fuzz.damage import Edit, damaged, edits
from tests.tournament.sample_snapshots import snapshot

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
PANEL = b"time,symbol,open,high,low,close,volume\n" + b"".join(
    f"2020-01-{day:02d},{symbol},{10 + day},{11 + day},{9 + day},{10.5 + day},{1000 * day}\n".encode()
    for day in (2, 3, 6, 7)
    for symbol in ("AAA", "BBB")
)
DAEMON = b"""name = "mine"
journal = "mine.sqlite"
strategy = "equal_weight"
symbols = ["AAPL", "KO"]
capital = 100_000.0

[broker]
kind = "simulated"

[schedule]
mode = "close"
"""


def reads(read: Callable[[Path], Any], path: Path) -> None:
    """Read a file; only errors of the project are expected."""
    with warnings.catch_warnings(), contextlib.suppress(FinrlPodError):
        warnings.simplefilter("ignore")  # of pandas, about dates
        read(path)


def read_weights(path: Path) -> None:
    """Read a snapshot whose tensors were damaged and whose hash was computed again, so that the tensors are parsed."""
    folder = path.parent
    facts = json.loads((folder / "valid.json").read_text())
    facts["tensors_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(facts))
    snapshots.load(path.with_suffix(".json"))


def read_journal(path: Path) -> None:
    journal = Journal.open(path)
    try:
        for table in metadata.sorted_tables:
            journal.rows(table)
    finally:
        journal.close()


@given(changes=edits())
@fuzz
def test_panels(tmp_path_factory: pytest.TempPathFactory, changes: list[Edit]) -> None:
    path = tmp_path_factory.mktemp("panel") / "prices.csv"
    path.write_bytes(damaged(PANEL, changes))
    reads(read_file, path)


@given(changes=edits())
@fuzz
def test_configs(tmp_path_factory: pytest.TempPathFactory, changes: list[Edit]) -> None:
    path = tmp_path_factory.mktemp("config") / "mine.toml"
    path.write_bytes(damaged(config_text(run_settings.RunConfig()).encode(), changes))
    reads(run_settings.load, path)


@given(changes=edits())
@fuzz
def test_daemon_configs(tmp_path_factory: pytest.TempPathFactory, changes: list[Edit]) -> None:
    path = tmp_path_factory.mktemp("daemon") / "paper.toml"
    path.write_bytes(damaged(DAEMON, changes))
    reads(paper_settings.load, path)


@given(changes=edits())
@fuzz
def test_facts_of_snapshots(tmp_path_factory: pytest.TempPathFactory, changes: list[Edit]) -> None:
    path = snapshots.save(tmp_path_factory.mktemp("snapshot"), snapshot())
    path.write_bytes(damaged(path.read_bytes(), changes))
    reads(snapshots.load, path)


@given(changes=edits(), header=st.booleans())
@fuzz
def test_tensors_of_snapshots(tmp_path_factory: pytest.TempPathFactory, changes: list[Edit], header: bool) -> None:
    path = snapshots.save(tmp_path_factory.mktemp("snapshot"), snapshot(id="valid")).with_suffix(".safetensors")
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little") if header else len(data)  # of the header that describes the tensors
    path.with_name("bad.safetensors").write_bytes(damaged(data[:end], changes) + data[end:])
    reads(read_weights, path.with_name("bad.safetensors"))


@given(changes=edits())
@fuzz
def test_journals(valid_journal: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[Edit]) -> None:
    path = tmp_path_factory.mktemp("journal") / "mine.sqlite"
    path.write_bytes(damaged(valid_journal.read_bytes(), changes))
    reads(read_journal, path)


@pytest.fixture(scope="module")
def valid_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("valid") / "mine.sqlite"
    Journal.create_or_open(path).close()
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "panels": read_file,
    "configs": run_settings.load,
    "daemon_configs": paper_settings.load,
    "snapshots": snapshots.load,
}


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_corpus(path: Path) -> None:
    """Every recorded file is refused by a message that names what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(FinrlPodError) as caught:
            READERS[path.parent.name](path)
    assert len(str(caught.value)) > 20

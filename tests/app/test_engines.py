"""Options of engines: what does not fit or cannot be used is refused in one sentence, with exit code 2."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.training.engines import EngineOptions, logged_run
from typer.testing import CliRunner

from finrl_pod.errors import ConfigError, FinrlPodError, RunError, SetupError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.executors import ray_connection

LOG = Path("events.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 2}, "--engine local trains in one process, got --shards 2; use processes or ray"),
        ({"address": "127.0.0.2:9"}, "--address is of a Ray cluster, got --engine local; add --engine ray"),
        ({"name": "processes", "gpus": 0.5}, "--shard-cpus and --shard-gpus are for --engine ray, got"),
        ({"name": "ray", "replay": LOG}, "--replay trains in one process, got --engine ray; use --engine local"),
        ({"name": "ray", "address": "here"}, "--address must be HOST:PORT of a Ray cluster, got 'here'"),
        ({"name": "ray", "address": "127.0.0.2:99999"}, "--address must be HOST:PORT"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineOptions(**options).check()
    assert message in str(caught.value)


def test_an_address_where_nobody_listens_is_named() -> None:
    with socket.socket() as reserved:  # bound, but not listening
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(SetupError, match=f"nothing listens at {address} "):
            EngineOptions("ray", address=address).check()


def test_missing_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SetupError, match=r'pip install "finrl-pod\[ray\]", or use --engine processes'):
        ray_connection.import_ray()


def test_the_log_of_another_config_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text('{"event": "started", "time": 0, "config_sha256": "x", "groups": [[0]], "shards": 1}\n')
    with pytest.raises(RunError, match="was made with another config or seed; repeat it with its own"):
        logged_run(log, RunConfig())
    with pytest.raises(RunError, match="there is no event log"):
        logged_run(tmp_path / "missing.jsonl", RunConfig())
    log.write_text("no json\n{}\n")
    with pytest.raises(FinrlPodError, match=r"line 1 of .* is not an event of a run"):
        logged_run(log, RunConfig())


def test_the_command_exits_with_2_and_writes_nothing(tmp_path: Path) -> None:
    from finrl_pod_app.cli.main import app
    from finrl_pod_app.setup.presets import write_preset

    write_preset("quick", tmp_path / "quick.toml")
    arguments = ["tournament", str(tmp_path / "quick.toml"), "--engine", "ray", "--address", "127.0.0.2:9"]
    with pytest.raises(SetupError, match=r"nothing listens at 127\.0\.0\.2:9 "):
        CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert SetupError("").exit_code == 2
    assert not (tmp_path / "run").exists()

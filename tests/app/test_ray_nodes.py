"""Paths of Ray's nodes: Ray passes that of its interpreter to a shell without quotes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from finrl_pod_app.training.ray_nodes import plain_python

from finrl_pod.errors import SetupError


def in_folder(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a link to this environment at `prefix` the running one."""
    prefix.parent.mkdir(exist_ok=True)
    prefix.symlink_to(sys.prefix, target_is_directory=True)
    monkeypatch.setattr(sys, "executable", str(prefix / Path(sys.executable).relative_to(sys.prefix)))
    monkeypatch.setattr(sys, "prefix", str(prefix))


def test_plain_path_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path / "environment", monkeypatch)
    assert plain_python(tmp_path) == sys.executable
    assert not (tmp_path / "python").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a space", "a(b)", "cost$", "it's"])
def test_path_that_a_shell_would_split_gets_a_link(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path / name / "environment", monkeypatch)
    for _ in range(2):  # one for each node
        path = plain_python(tmp_path)
        code = "import sys, typer; print(sys.prefix)"  # of the environment's packages
        shell = ["bash", "-c", f"exec {path} -c '{code}'"]
        assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.strip() == f"{tmp_path}/python"


def test_folder_of_links_that_a_shell_would_split_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path / "a space" / "environment", monkeypatch)
    with pytest.raises(SetupError, match=r"a space/environment/bin/python.* set TMPDIR"):
        plain_python(tmp_path / "a space")

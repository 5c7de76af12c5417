"""Output folders: locked by one process and containing one kind of result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from finrl_pod_app.setup.output_folder import (
    BACKTEST,
    RUN,
    SWEEP,
    WALK_FORWARD,
    RewritableResult,
    locked_folder,
    refuse_other,
    rewritable_folder,
)

from finrl_pod.errors import RunError

HOLDER = """
import sys
from pathlib import Path
from finrl_pod_app.setup.output_folder import RUN, locked_folder
with locked_folder(Path(sys.argv[1]), RUN):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_folder_is_locked_until_its_process_ends(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is writing to"), locked_folder(out, RUN):
            pass
        holder.kill()
    with locked_folder(out, RUN):
        (out / RUN).write_text("{}")
    with locked_folder(out, RUN):
        pass
    assert out.exists()


def test_empty_new_folder_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test error"), locked_folder(tmp_path / "one", RUN):
        raise ValueError("test error")
    assert not (tmp_path / "one").exists()


def test_other_kinds_of_results_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / WALK_FORWARD).write_text("{}")
    refuse_other(tmp_path, WALK_FORWARD)
    for own in (RUN, ""):
        with pytest.raises(RunError, match="has a walk-forward that would be overwritten"):
            refuse_other(tmp_path, own)


def test_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"cannot write .*file/one: Not a directory"),
        locked_folder(tmp_path / "file" / "one", RUN),
    ):
        pass


@pytest.mark.parametrize("kind", [BACKTEST, SWEEP], ids=lambda kind: kind.description)
def test_files_of_other_programs_are_not_overwritten(kind: RewritableResult, tmp_path: Path) -> None:
    other = tmp_path / kind.other_files[0]
    other.write_text("user file")
    with (
        pytest.raises(RunError, match=f"has a {other.name} that was not written by {kind.description}"),
        rewritable_folder(tmp_path, kind),
    ):
        pass
    (tmp_path / kind.marker).write_text('{"something": "else"}')
    with (
        pytest.raises(RunError, match=f"has a {kind.marker} that was not written by"),
        rewritable_folder(tmp_path, kind),
    ):
        pass
    (tmp_path / kind.marker).write_text(f'{{"{kind.key}": []}}')
    with rewritable_folder(tmp_path, kind):
        pass
    assert other.read_text() == "user file"


def test_unwritable_folder_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"file: it is a file"),
        rewritable_folder(tmp_path / "file", SWEEP),
    ):
        pass
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write into closed folders
    with (
        pytest.raises(RunError, match=r"closed: no permission"),
        rewritable_folder(tmp_path / "closed", SWEEP),
    ):
        pass
    assert not (tmp_path / "closed").exists()

"""Output folders: locked by one process and containing one kind of result."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
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
from tests.app.small_run import isolated_folders

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


def refuse_room(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let every disk refuse more bytes; root may write into closed folders."""

    def refuse(handle: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "its disk has less than 16 MiB left"),
        (errno.EDQUOT, "its quota has less than 16 MiB left"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_folder_without_room_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    refuse_room(monkeypatch, code)
    out = tmp_path / "runs" / "one"
    with pytest.raises(RunError, match=f"cannot write .*{reason}.*--out"), locked_folder(out, RUN):
        pytest.fail("the work begins")
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--quick", "--out", "out"],
        ["tournament", "mine.toml", "--out", "out"],
        ["train", "mine.toml", "--no-test", "--out", "out"],
        ["train", "--env", "gym:CartPole-v1", "--out", "out"],
        ["train", "--market", "desk", "--out", "out"],
        ["backtest", "--strategy", "equal_weight", "--out", "out"],
        ["data", "import", "prices.csv", "--name", "mine"],
        ["paper", "demo", "--out", "out"],
        ["paper", "run", "paper.toml"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_refuse_a_full_disk_before_their_work(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with isolated_folders(tmp_path), contextlib.chdir(tmp_path):
        Path("prices.csv").write_text("date,A\n")
        Path("paper.toml").write_text(
            'strategy = "equal_weight"\nsymbols = ["AAPL"]\nbroker.kind = "simulated"\nschedule.mode = "close"\n'
        )
        assert run(["init", "--preset", "quick", "mine.toml"]) == 0
        refuse_room(monkeypatch, errno.ENOSPC)
        assert run(arguments) == 2
        assert not Path("out").exists()
    message = capsys.readouterr().err
    assert "MiB left" in message or "No space left on device" in message
    assert "generation" not in message


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


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"file: it is a file"),
        rewritable_folder(tmp_path / "file", SWEEP),
    ):
        pass

"""A folder of results is one process's at a time, and of one kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from finrl_pod_app.output_folder import RUN, WALK_FORWARD, held, refuse_other

from finrl_pod.errors import RunError

HOLDER = """
import sys
from pathlib import Path
from finrl_pod_app.output_folder import RUN, held
with held(Path(sys.argv[1]), RUN):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_kept_out_until_the_holder_ends(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is writing into"), held(out, RUN):
            pass
        holder.kill()
    with held(out, RUN):
        (out / RUN).write_text("{}")
    with held(out, RUN):
        pass
    assert out.exists()


def test_a_folder_that_stayed_empty_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to do"), held(tmp_path / "one", RUN):
        raise ValueError("nothing to do")
    assert not (tmp_path / "one").exists()


def test_another_kind_of_result_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / WALK_FORWARD).write_text("{}")
    refuse_other(tmp_path, WALK_FORWARD)
    for own in (RUN, ""):
        with pytest.raises(RunError, match="holds a walk-forward, which this would write over; name another folder"):
            refuse_other(tmp_path, own)


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"cannot write .*file/one: Not a directory"),
        held(tmp_path / "file" / "one", RUN),
    ):
        pass

"""Worker processes: the same steps as without them, losses that are made good, and nothing left behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import torch
from finrl_pod_envs.gymnasium_pool.drivers import PoolDriver, _Worker
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.worker import DONE, _BusySignal

from finrl_pod.errors import ConfigError, RunError
from tests.envs.gymnasium_pool.faulty_envs import NAME
from tests.envs.gymnasium_pool.test_env import ODD, actions, play, same

pytestmark = pytest.mark.slow


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trouble"
    monkeypatch.setenv("ODD_TROUBLE", str(path))
    return path


def test_workers_step_as_this_process_does() -> None:
    here = play(GymnasiumVecEnv(ODD, envs=4, members=(0, 2)), 1, 15)
    with closing(GymnasiumVecEnv(ODD, envs=4, members=(0, 2), workers=4)) as env:
        there = play(env, 1, 15)
        assert same(here, there, reward=False)  # the reward tells the process
        pids = env.pids
    assert [int(x) for x in there[0].reward.flatten()[::2]] == pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_pool_continues_exactly_from_a_local_checkpoint() -> None:
    env = GymnasiumVecEnv(ODD, envs=2)
    play(env, 2, 9)
    saved, rest = env.checkpoint(), actions(env, 10, seed=1)
    after = [env.step(action) for action in rest]
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=1)) as other:
        other.reset(0)
        other.resume(saved)
        assert same(after, [other.step(action) for action in rest], reward=False)


@pytest.mark.parametrize(
    ("what", "said"), [("die", "signal 9"), ("hang", "did not respond for 1 s"), ("raise", "lost its mind")]
)
def test_a_lost_worker_is_replaced_and_the_others_continue(
    trouble: Path, caplog: pytest.LogCaptureFixture, what: str, said: str
) -> None:
    plain = play(GymnasiumVecEnv(ODD, envs=4), 1, 12)
    with caplog.at_level(logging.WARNING), closing(GymnasiumVecEnv(ODD, envs=4, workers=2, seconds=1.0)) as env:
        env.reset(1)
        first = env.pids
        trouble.write_text(what)
        outs = [env.step(action) for action in actions(env, 12)]
        assert env.worker_restarts == 1
        later = env.pids
    assert said in caplog.text
    assert "replaced" in caplog.text
    kept = 0 if first[0] == later[0] else 1
    assert first[kept] == later[kept]
    assert first[1 - kept] != later[1 - kept]
    assert not psutil.pid_exists(first[1 - kept])
    lost, well = [slice(0, 2), slice(2, 4)] if kept == 1 else [slice(2, 4), slice(0, 2)]
    out, before = outs[2], outs[1]
    # Two lanes of one worker: their step counts as cut off, worth nothing, where they stood, and they begin anew.
    assert out.truncated[0, lost].all()
    assert not out.terminated[0, lost].any()
    assert not out.reward[0, lost].any()
    assert torch.equal(out.final_observation[0, lost], before.observation[0, lost])
    assert (out.observation[0, lost, 0] < 1).all()
    for a, b in zip(plain, outs, strict=True):
        assert torch.equal(a.observation[0, well], b.observation[0, well])
        assert torch.equal(a.truncated[0, well], b.truncated[0, well])


def test_an_environment_that_never_works_ends_the_run() -> None:
    still = torch.zeros(1, 1, 2)
    with closing(GymnasiumVecEnv(ODD, envs=1, workers=1)) as env:
        env.reset(0)
        for killed in (True, True, False, True, True):
            if killed:
                os.kill(env.pids[0], signal.SIGKILL)
            env.step(still)  # the third one does a step, and is forgiven the two before it
        os.kill(env.pids[0], signal.SIGKILL)
        with pytest.raises(RunError, match=r"3 times in a row; check that the environment runs by itself"):
            env.step(still)


def test_a_wrong_shape_in_a_worker_is_named_too() -> None:
    with (
        closing(GymnasiumVecEnv(NAME.format("Short"), workers=1)) as env,
        pytest.raises(ConfigError, match=r"shape \(2,\), its observation_space has \(3,\)"),
    ):
        env.reset(0)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"workers": 0}, "--workers must be 1 or more, got 0"),
        ({"workers": 3}, "--workers must divide the 4 environments, got 3"),
        ({"workers": 2, "seconds": 0.0}, "--worker-timeout must be more than 0"),
        ({"workers": 2, "seconds": float("inf")}, "--worker-timeout must be more than 0 and at most 86400 s, got inf"),
    ],
)
def test_invalid_pools_are_rejected(terms: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymnasiumVecEnv(ODD, envs=4, **terms)  # type: ignore[arg-type]


def test_workers_outlive_the_thread_that_started_them() -> None:
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=2)) as env:
        thread = threading.Thread(target=env.reset, args=(0,))
        thread.start()
        thread.join()
        time.sleep(0.2)
        env.step(torch.zeros(1, 2, 2))
        assert env.worker_restarts == 0


def test_workers_leave_sigterm_to_their_parent() -> None:
    """As a service manager sends it: to every process at once."""
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=2)) as env:
        env.reset(0)
        for pid in env.pids:
            os.kill(pid, signal.SIGTERM)
        env.step(torch.zeros(1, 2, 2))
        assert env.worker_restarts == 0


def test_a_worker_that_repeats_episodes_reports_busy_and_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod_envs.gymnasium_pool.worker.BUSY_SECONDS", 0.05)
    ours, theirs = multiprocessing.Pipe()
    worker = _Worker(range(1), psutil.Popen(["true"]), ours)

    def work() -> None:
        busy = _BusySignal(theirs)
        for _ in range(20):
            time.sleep(0.06)
            busy()
        theirs.send_bytes(DONE)

    thread = threading.Thread(target=work)
    thread.start()
    assert PoolDriver._wait_for(PoolDriver.__new__(PoolDriver), [worker], 0.6) == []
    thread.join()
    worker.process.wait()


PARENT = """
import sys, torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
env = GymnasiumVecEnv(sys.argv[1], envs=2, workers=2)
env.reset(0)
print(*env.pids, flush=True)
sys.stdin.readline()
while True:
    env.step(torch.zeros(1, 2, 2))
"""


IN_A_THREAD = "import threading; t = threading.Thread(target=env.reset, args=(0,)); t.start(); t.join()"
THREADED = PARENT.replace("env.reset(0)", IN_A_THREAD)


@pytest.mark.parametrize("program", [PARENT, THREADED])
def test_workers_exit_with_a_killed_parent(trouble: Path, program: str) -> None:
    """Also one that hangs in its environment and never looks at its pipe again."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, ODD], **pipes, text=True) as parent:  # type: ignore[call-overload]
        pids = [int(x) for x in parent.stdout.readline().split()]
        assert len(pids) == 2
        trouble.write_text("hang")
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert _within(20, lambda: not trouble.exists())  # it has been met
        assert all(_runs(pid) for pid in pids)
        parent.kill()
    assert _within(20, lambda: not any(_runs(pid) for pid in pids))


def _within(seconds: float, what: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

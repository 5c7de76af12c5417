"""Worker processes: same results as in-process, failed workers are replaced, and no process is left behind."""

from __future__ import annotations

import logging
import os
import signal
import socket
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
from finrl_pod_envs.gymnasium_pool.worker import DONE, Channel, _BusySignal

from finrl_pod.errors import ConfigError, RunError
from tests.envs.gymnasium_pool.faulty_envs import NAME
from tests.envs.gymnasium_pool.test_env import ODD, actions, play, same

pytestmark = pytest.mark.slow


@pytest.fixture
def failure_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "failure"
    monkeypatch.setenv("ODD_FAILURE_FILE", str(path))
    return path


def test_pooled_steps_equal_in_process_steps() -> None:
    local = play(GymnasiumVecEnv(ODD, envs=4, members=(0, 2)), 1, 15)
    with closing(GymnasiumVecEnv(ODD, envs=4, members=(0, 2), workers=4)) as env:
        pooled = play(env, 1, 15)
        assert same(local, pooled, reward=False)  # the reward is the process id
        pids = env.pids
    assert [int(x) for x in pooled[0].reward.flatten()[::2]] == pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_pool_resumes_exactly_from_an_in_process_checkpoint() -> None:
    env = GymnasiumVecEnv(ODD, envs=2)
    play(env, 2, 9)
    saved, later_actions = env.checkpoint(), actions(env, 10, seed=1)
    expected = [env.step(action) for action in later_actions]
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=1)) as other:
        other.reset(0)
        other.resume(saved)
        assert same(expected, [other.step(action) for action in later_actions], reward=False)


@pytest.mark.parametrize(
    ("failure", "message"), [("die", "signal 9"), ("hang", "did not respond for 1 s"), ("raise", "in an invalid state")]
)
def test_failed_worker_is_replaced_and_the_others_continue(
    failure_file: Path, caplog: pytest.LogCaptureFixture, failure: str, message: str
) -> None:
    plain = play(GymnasiumVecEnv(ODD, envs=4), 1, 12)
    with caplog.at_level(logging.WARNING), closing(GymnasiumVecEnv(ODD, envs=4, workers=2, seconds=1.0)) as env:
        env.reset(1)
        pids_before = env.pids
        failure_file.write_text(failure)
        outcomes = [env.step(action) for action in actions(env, 12)]
        assert env.worker_restarts == 1
        pids_after = env.pids
    assert message in caplog.text
    assert "replaced" in caplog.text
    unaffected_worker = 0 if pids_before[0] == pids_after[0] else 1
    assert pids_before[unaffected_worker] == pids_after[unaffected_worker]
    assert pids_before[1 - unaffected_worker] != pids_after[1 - unaffected_worker]
    assert not psutil.pid_exists(pids_before[1 - unaffected_worker])
    replaced, unaffected = [slice(0, 2), slice(2, 4)] if unaffected_worker == 1 else [slice(2, 4), slice(0, 2)]
    outcome, before = outcomes[2], outcomes[1]
    # Both lanes of the failed worker are truncated at their last observation with zero reward and then reset.
    assert outcome.truncated[0, replaced].all()
    assert not outcome.terminated[0, replaced].any()
    assert not outcome.reward[0, replaced].any()
    assert torch.equal(outcome.final_observation[0, replaced], before.observation[0, replaced])
    assert (outcome.observation[0, replaced, 0] < 1).all()
    for a, b in zip(plain, outcomes, strict=True):
        assert torch.equal(a.observation[0, unaffected], b.observation[0, unaffected])
        assert torch.equal(a.truncated[0, unaffected], b.truncated[0, unaffected])


def test_three_consecutive_worker_failures_end_the_run() -> None:
    action = torch.zeros(1, 1, 2)
    with closing(GymnasiumVecEnv(ODD, envs=1, workers=1)) as env:
        env.reset(0)
        for killed in (True, True, False, True, True):
            if killed:
                os.kill(env.pids[0], signal.SIGKILL)
            env.step(action)  # the third step succeeds, which resets the count of failures
        os.kill(env.pids[0], signal.SIGKILL)
        with pytest.raises(RunError, match=r"3 times in a row; check that the environment works without --workers"):
            env.step(action)


@pytest.mark.parametrize(("name", "error"), [("Always", "ValueError: in every episode"), ("Exits", "SystemExit: 3")])
def test_third_equal_exception_ends_the_run_with_the_line_of_the_environment(name: str, error: str) -> None:
    with closing(GymnasiumVecEnv(NAME.format(name), envs=2, workers=2)) as env:
        env.reset(0)
        with pytest.raises(RunError, match=rf"failed 3 times: {error} \(.*faulty_envs.py, line"):
            play(env, 0, 20)
        assert env.worker_restarts <= 3


def test_wrong_observation_shape_in_a_worker_raises_with_both_shapes() -> None:
    with (
        closing(GymnasiumVecEnv(NAME.format("Short"), workers=1)) as env,
        pytest.raises(ConfigError, match=r"shape \(2,\), its observation_space has \(3,\)"),
    ):
        env.reset(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "--workers must be 0 or more, got -1"),
        ({"workers": 3}, "--workers must divide the 4 environments, got 3"),
        ({"workers": 2, "seconds": 0.0}, "--worker-timeout must be more than 0"),
        ({"workers": 2, "seconds": float("inf")}, "--worker-timeout must be more than 0 and at most 86400 s, got inf"),
    ],
)
def test_invalid_pool_options_are_rejected(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymnasiumVecEnv(ODD, envs=4, **options)  # type: ignore[arg-type]


def test_workers_outlive_the_thread_that_started_them() -> None:
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=2)) as env:
        thread = threading.Thread(target=env.reset, args=(0,))
        thread.start()
        thread.join()
        time.sleep(0.2)
        env.step(torch.zeros(1, 2, 2))
        assert env.worker_restarts == 0


def test_workers_ignore_sigterm() -> None:
    """Service managers send SIGTERM to all processes of a service; the parent closes the workers."""
    with closing(GymnasiumVecEnv(ODD, envs=2, workers=2)) as env:
        env.reset(0)
        for pid in env.pids:
            os.kill(pid, signal.SIGTERM)
        env.step(torch.zeros(1, 2, 2))
        assert env.worker_restarts == 0


def test_worker_that_reports_busy_does_not_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod_envs.gymnasium_pool.worker.BUSY_SECONDS", 0.05)
    parent_end, child_end = (Channel(end.detach()) for end in socket.socketpair())
    worker = _Worker(range(1), psutil.Popen(["true"]), parent_end)

    def work() -> None:
        busy = _BusySignal(child_end)
        for _ in range(20):
            time.sleep(0.06)
            busy()
        child_end.send(DONE)

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
def test_workers_exit_when_the_parent_is_killed(failure_file: Path, program: str) -> None:
    """Also a worker whose environment hangs, so that it never reads its pipe again."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, ODD], **pipes, text=True) as parent:  # type: ignore[call-overload]
        pids = [int(x) for x in parent.stdout.readline().split()]
        assert len(pids) == 2
        failure_file.write_text("hang")
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert _becomes_true(20, lambda: not failure_file.exists())  # a worker has started to hang
        assert all(_is_running(pid) for pid in pids)
        parent.kill()
    assert _becomes_true(20, lambda: not any(_is_running(pid) for pid in pids))


def _becomes_true(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

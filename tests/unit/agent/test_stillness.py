"""Processes that somebody stopped, in virtual time, and as the kernel tells of real ones."""

import os
import signal
import subprocess
import sys

from varuna_runtime.agent.stillness import LOOK_S, Business, Stillness, is_stopped


class Watch:
    """Looks at processes 1 and 2, of which those in `stopped` are."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stopped: set[int] = set()
        self.stillness = Stillness(0.75, is_stopped=lambda pid: pid in self.stopped)

    def look(self, for_s: float = LOOK_S) -> dict[int, float]:
        found: dict[int, float] = {}
        for _ in range(round(for_s / LOOK_S)):
            self.now_s += LOOK_S
            found = self.stillness.look([1, 2], self.now_s)
        return found


def test_a_process_that_stays_stopped_is_found_and_one_that_runs_is_not() -> None:
    watch = Watch()
    watch.look()
    watch.stopped = {1}
    assert watch.look(0.6) == {}
    assert set(watch.look(0.4)) == {1}


def test_one_that_goes_on_in_between_is_not_found() -> None:
    watch = Watch()
    for _ in range(10):
        watch.stopped = {1}
        assert watch.look(0.6) == {}
        watch.stopped = set()
        watch.look()


def test_an_agent_that_was_stopped_with_its_workers_gives_them_time_to_go_on() -> None:
    watch = Watch()
    watch.stopped = {1, 2}
    watch.look(0.5)
    watch.now_s += 10.0
    assert watch.look(0.3) == {}
    watch.stopped = {2}
    watch.look(0.3)
    assert set(watch.look(0.4)) == {2}


def test_the_kernel_tells_a_stopped_process_from_a_running_and_an_ended_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


def test_who_computes_is_told_again_and_again_and_who_waits_is_not() -> None:
    used = {1: 5.0, 2: 5.0}
    business = Business(computed_s=used.__getitem__)
    assert business.look([1, 2]) == []
    for _ in range(3):
        used[1] += 0.04
        used[2] += 0.001
        business.look([1, 2])
    used[1] += 0.06
    assert business.look([1, 2]) == [1]
    assert business.look([1, 2]) == []

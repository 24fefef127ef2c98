"""Forks workers on request and reaps them with everything they started; owns no training."""

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from varuna_runtime.vault.lifeline import die_with
from varuna_runtime.wire import launch
from varuna_runtime.worker import lifeline
from varuna_runtime.worker.lines import LineSocket

Work = Callable[[launch.ForkRank], NoReturn]


class ForkServer:
    """Serves one agent until it closes the socket. `work` runs in the child and never returns."""

    def __init__(self, agent: LineSocket, work: Work) -> None:
        self._agent = agent
        self._work = work
        self._workers: dict[int, int] = {}  # pid -> pidfd
        self._kept: frozenset[int] = frozenset()  # children the script made before it was held
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Return when the agent is gone and every worker is dead."""
        self._kept = lifeline.children()
        self._selector.register(self._agent, selectors.EVENT_READ, None)
        while self._serve_once():
            pass
        for pid in self._workers:
            _kill_group(pid)

    def _serve_once(self) -> bool:
        for ready, _ in self._selector.select():
            if ready.data is not None:
                self._reap(ready.data)
                continue
            messages = self._agent.receive()
            if messages is None:
                return False
            for message in messages:
                self._obey(message)
        return True

    def _obey(self, message: launch.Message) -> None:
        match message:
            case launch.ForkRank():
                self._fork(message)
            case launch.KillRank() if message.pid in self._workers:
                _kill_group(message.pid)
            case _:
                pass

    def _fork(self, request: launch.ForkRank) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(request, launcher)
        with contextlib.suppress(OSError):  # the child does the same; whoever comes first
            os.setpgid(pid, pid)
        self._workers[pid] = os.pidfd_open(pid)
        self._selector.register(self._workers[pid], selectors.EVENT_READ, pid)
        self._agent.send(launch.Forked(generation=request.generation, rank=request.rank, pid=pid))

    def _become_worker(self, request: launch.ForkRank, launcher: int) -> NoReturn:
        """In the child: keep nothing of the server, then work."""
        try:
            os.setpgid(0, 0)
            die_with(launcher)
            self._selector.close()
            self._agent.close()
            for pidfd in self._workers.values():
                os.close(pidfd)
            self._work(request)
        finally:
            os._exit(1)

    def _reap(self, pid: int) -> None:
        """The zombie still holds its process group id, so the group is killed before it is reaped."""
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        pidfd = self._workers.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        if not self._workers:
            lifeline.end_children(kept=self._kept)  # what workers left in other sessions
        code = os.waitstatus_to_exitcode(status)
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        self._agent.send(launch.Exited(pid=pid, exit_code=exit_code, signal=number))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

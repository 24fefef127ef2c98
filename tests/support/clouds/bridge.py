"""Makes the machines of a cloud double real: an agent process and a metadata service for each running one.

It plays the machine and nothing else: it starts one when the cloud says that it runs, and takes it away with
all its processes, without a word, when the cloud no longer does. It tells the cloud nothing.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.clouds.metadata_server import MetadataServer
from tests.support.pool import carriers, kill, wait_until

POLL_S = 0.3  # a look at moto costs 30 ms of CPU
AGENT = (sys.executable, "-m", "varuna_manager.cli", "agent")


class Cloud(Protocol):
    """What a bridge asks a double, past any fault proxy."""

    def running(self) -> Sequence[str]:
        """Return the nodes whose machines run."""
        ...

    def plug_in(self, node: str, metadata: MetadataServer) -> None:
        """Tell a new machine's metadata service who it is."""
        ...

    def refresh(self, node: str, metadata: MetadataServer) -> None:
        """Carry words between the cloud and a machine; called all the time."""
        ...


@dataclass
class Machine:
    """One machine; its processes are those that carry its home."""

    node: str
    home: Path
    metadata: MetadataServer
    boots_at_s: float
    agent: "subprocess.Popen[bytes] | None" = None

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the agent."""
        with (self.home / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [*AGENT, *words],
                env={**environment, "VARUNA_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def vanish(self) -> None:
        """End every process at once, the agent first, as a machine does that loses its power."""
        if self.agent is not None:
            self.agent.kill()
        wait_until(self._is_empty, f"processes of {self.node} cannot be killed")
        if self.agent is not None:
            self.agent.wait()
        self.metadata.stop()

    def kill_processes(self) -> None:
        """End every process but leave the machine: a zombie that runs and does nothing."""
        wait_until(self._is_empty, f"processes of {self.node} cannot be killed")

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        assert self.agent is not None
        self.agent.send_signal(number)

    def log(self) -> str:
        """Return what the agent said."""
        path = self.home / "agent.log"
        return path.read_text() if path.exists() else ""

    def _is_empty(self) -> bool:
        for pid in (found := carriers(self.home)):
            kill(pid)
        return not found


def _short_folder() -> "tempfile.TemporaryDirectory[str]":
    """Where sockets go whose path would be too long in a machine's home."""
    return tempfile.TemporaryDirectory(prefix="vm-", dir="/tmp", ignore_cleanup_errors=True)


@dataclass
class Bridge:
    """Runs in a thread of its own; a context manager whose end takes every machine away.

    `words` gives the arguments of a machine's agent, `environment` what it inherits. The next `num_duds`
    machines never start an agent.
    """

    cloud: Cloud
    folder: Path
    words: Sequence[str]
    environment: Callable[[MetadataServer], Mapping[str, str]]
    boot_s: float = 0.0
    num_duds: int = 0
    machines: dict[str, Machine] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # every node there ever was, in order
    duds: list[str] = field(default_factory=list)  # those that never started an agent
    most: int = 0  # machines there were at one time
    _scratch: "tempfile.TemporaryDirectory[str]" = field(default_factory=_short_folder)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _broken: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> "Bridge":
        self._thread = threading.Thread(target=self._run, name="bridge")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._lock:
            for node in list(self.machines):
                self._take_away(node)
        self._scratch.cleanup()
        if self._broken:
            raise self._broken[0]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no machine come or go meanwhile."""
        with self._lock:
            yield

    def living(self) -> list[str]:
        """Return the nodes whose machines are there, the oldest first."""
        with self._lock:
            return list(self.machines)

    def __getitem__(self, node: str) -> Machine:
        with self._lock:
            return self.machines[node]

    def _run(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                self._look()
        except BaseException as err:
            self._broken.append(err)

    def _look(self) -> None:
        running = self.cloud.running()
        with self._lock:
            for node in [node for node in self.machines if node not in running]:
                self._take_away(node)
            for node in running:
                if node not in self.machines:
                    self._bring(node)
            self.most = max(self.most, len(self.machines))
            for machine in self.machines.values():
                self.cloud.refresh(machine.node, machine.metadata)
                if machine.agent is None and time.monotonic() >= machine.boots_at_s:
                    environment = {**self.environment(machine.metadata), "TMPDIR": self._scratch.name}
                    machine.start(self.words, environment)

    def _bring(self, node: str) -> None:
        home = self.folder / node
        home.mkdir(parents=True)
        metadata = MetadataServer()
        metadata.start()
        self.cloud.plug_in(node, metadata)
        boots_at_s = time.monotonic() + self.boot_s
        if self.num_duds > 0:
            self.num_duds -= 1
            boots_at_s = float("inf")
            self.duds.append(node)
        self.machines[node] = Machine(node=node, home=home, metadata=metadata, boots_at_s=boots_at_s)
        self.seen.append(node)

    def _take_away(self, node: str) -> None:
        self.machines.pop(node).vanish()

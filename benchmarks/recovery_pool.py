"""Our training: a local pool with a state home of its own, driven by what a user has."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks import recovery_stamps as stamps
from benchmarks.recovery_peers import JOB, RECOVERED_WITHIN_S, SETTLED_STEPS, START_WITHIN_S
from benchmarks.recovery_processes import command_line, is_alive, kill, parent, tree, until
from benchmarks.recovery_stamps import Recovery, Stamp
from benchmarks.testbed import RankFailed
from varuna_manager import serving
from varuna_manager.client import Client, EventRecord, JobStatus, NodeStatus
from varuna_manager.cloud.local_machines import AgentCommand, AgentLaunch, LocalMachines
from varuna_manager.cloud.pool_file import Role
from varuna_manager.home import Home
from varuna_runtime.spec.errors import VarunaError

MANY_STEPS = 1_000_000
_SLOT_BYTES = 2 << 30
_JOB = {
    "name": "recovery",
    "workdir": "job",
    "entrypoint": "train.py",
    "batch_size": "8",
    "micro_batch_size": "2",
    "checkpoint": "{interval_steps: 10}",
}
_CLI = (sys.executable, "-m", "varuna_manager.cli")


class Pool:
    """A manager and nodes; a context manager that takes all of it down."""

    def __init__(
        self,
        *,
        nodes: int,
        slots: int = 1,
        memory_bytes: int = _SLOT_BYTES,
        settings: str = "",
        command: AgentCommand | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vrng-"))
        self.home = Home(self.folder / "home")
        self.script, self.job_file = self.folder / "job", self.folder / "job.yaml"
        self._stamps = self.folder / "stamps"
        self._machines = LocalMachines(self.home, command=command)
        self._nodes, self._slots, self._memory_bytes, self._settings = nodes, slots, memory_bytes, settings
        self.job = ""

    def __enter__(self) -> Self:
        try:
            self._raise_manager()
            self.add(self._nodes)
            self.await_ready(self._nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._varuna("down")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, **lines: str) -> None:
        """Submit the subject with these lines in its job file; its stamps begin anew.

        Its environment and its files are always the same, so that a pool measures a profile only once.
        """
        self._stamps.unlink(missing_ok=True)
        self.script.mkdir(exist_ok=True)
        for name in ("subject.py", "train.py"):
            shutil.copy(JOB / name, self.script)
        environment = f'{{STAMPS: "{self._stamps}"}}'
        content = {**_JOB, "steps": str(MANY_STEPS), "env": environment, **lines}
        self.job_file.write_text("".join(f"{key}: {value}\n" for key, value in content.items()))
        self.job = self._varuna("submit", str(self.job_file)).split()[-1]

    def cancel(self) -> None:
        """End the job and wait until nothing of it runs."""
        with self.client() as client:
            client.cancel(self.job, user="benchmark")
        until(lambda: self.status().is_over, "the end of a job", 60.0)

    def client(self) -> Client:
        """Return a client of the manager."""
        found = serving.read(self.home)
        if found is None:
            raise RankFailed("the manager is away")
        return Client(found.address)

    @property
    def stamps(self) -> list[Stamp]:
        """Steps of the job so far."""
        return stamps.read(self._stamps)

    def status(self) -> JobStatus:
        """Return the job as the manager sees it."""
        with self.client() as client:
            return client.job(self.job)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the nodes as the manager sees them."""
        with self.client() as client:
            return client.nodes()

    def ready(self) -> list[NodeStatus]:
        """Return the nodes that may be planned with."""
        return [node for node in self.nodes() if node.state == "READY"]

    def await_ready(self, count: int) -> None:
        """Wait until so many nodes may be planned with."""
        until(lambda: len(self.ready()) >= count, f"{count} nodes to register", START_WITHIN_S)

    def events(self) -> list[EventRecord]:
        """Return the events of the job."""
        with self.client() as client:
            return list(client.events(self.job))

    def settle(self, layout: str, *, after: int = 0, within_s: float = START_WITHIN_S) -> int:
        """Wait for some steps of a life after `after`, in this layout (any if empty); return that life."""

        def is_settled() -> bool:
            seen = self.stamps
            if not seen or seen[-1].life <= after:
                return False
            own = sum(stamp.life == seen[-1].life for stamp in seen)
            return own >= SETTLED_STEPS and (not layout or self.status().layout == layout)

        self._until(is_settled, f"steps in layout {layout}", within_s)
        return self.stamps[-1].life

    def recovered(self, fault_s: float) -> Recovery:
        """Wait for the first newly committed step."""
        self._until(
            lambda: stamps.recovery(self.stamps, fault_s) is not None, "a new step", RECOVERED_WITHIN_S
        )
        found = stamps.recovery(self.stamps, fault_s)
        assert found is not None
        return found

    def agents(self) -> dict[str, int]:
        """Return the pids of living agents by node."""
        started = [s for s in self._machines.started() if s.role is Role.AGENT]
        return {s.name: s.process.pid for s in started if is_alive(s.process.pid)}

    def members(self) -> list[str]:
        """Return the nodes that have ranks of the job."""
        return [node.node for node in self.nodes() if node.ranks and node.job == self.job]

    def workers(self, node: str | None = None) -> list[int]:
        """Return the workers of one node or of all: forks of launchers, which look like these."""
        agents = [pid for name, pid in self.agents().items() if node in (None, name)]
        below = {pid for agent in agents for pid in tree(agent)[1:]}
        alike = {pid for pid in below if "varuna_runtime.worker.launcher" in command_line(pid)}
        return sorted(pid for pid in alike if parent(pid) in alike)

    def kill_worker(self, draw: random.Random) -> float:
        """SIGKILL one worker and return when."""
        return kill([draw.choice(self.workers())])

    def kill_node(self, node: str) -> float:
        """SIGKILL an agent and all below it, and return when."""
        return kill(tree(self.agents()[node]))

    def kill_manager(self) -> float:
        """SIGKILL the manager and return when."""
        found = serving.read(self.home)
        assert found is not None
        return kill([found.process.pid])

    def add(self, count: int = 1, *, memory_bytes: int | None = None) -> list[str]:
        """Start agents and return their nodes, not waiting for them."""
        found = serving.read(self.home)
        assert found is not None
        launch = AgentLaunch(
            manager=found.address, slots=self._slots, memory_bytes=memory_bytes or self._memory_bytes
        )
        return list(self._machines.add(launch, count))

    def replace_lost(self) -> None:
        """Bring the pool back to as many nodes as it began with."""
        self.add(self._nodes - len(self.agents()))
        alive = self.agents

        def are_back() -> bool:
            return len({node.node for node in self.ready()} & alive().keys()) == self._nodes

        until(are_back, "new nodes to register", START_WITHIN_S)

    def drain(self, node: str) -> float:
        """Take a node out of use, and return when that was asked."""
        begun_s = time.monotonic()
        with self.client() as client:
            client.drain(node, user="benchmark")
        return begun_s

    def notice(self, node: str, in_s: float) -> float:
        """Announce that a node will vanish, and return when that was."""
        begun_s = time.monotonic()
        self._machines.notice(node, in_s)
        return begun_s

    def export(self, step: int, to: Path) -> None:
        """Write the weights of a durable step as a file for `torch.load`."""
        words = ("--step", str(step), "--to", str(to), "--format", "torch")
        self._varuna("checkpoint", "export", self.job, *words)

    def revive_manager(self) -> None:
        """Start the manager again where it was."""
        self._raise_manager()

    def _raise_manager(self) -> None:
        words = ["up", "-n", "0"]
        if self._settings:
            path = self.folder / "manager.yaml"
            path.write_text(self._settings)
            words += ["--config", str(path)]
        self._varuna(*words)

    def _varuna(self, *words: str) -> str:
        done = subprocess.run(
            [*_CLI, *words],
            env=self._environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=START_WITHIN_S,
        )
        if done.returncode:
            raise RankFailed(f"varuna {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _environment(self) -> Mapping[str, str]:
        plain = {"VARUNA_INSECURE_PLAINTEXT": "1"} if self._settings else {}
        return {**os.environ, **plain, "VARUNA_HOME": str(self.home.root)}

    def _until(self, holds: object, what: str, within_s: float) -> None:
        assert callable(holds)
        try:
            until(holds, what, within_s)
        except RankFailed as err:
            raise RankFailed(f"ours: {err}\n{self._trail()}") from err

    def _trail(self) -> str:
        try:
            return "\n".join(f"g{e.generation} {e.node} {e.what}: {e.why}" for e in self.events()[-20:])
        except VarunaError as err:
            return str(err)


def timeline(events: Sequence[EventRecord], generation: int) -> list[str]:
    """Return what was told of a generation, with seconds since its first event."""
    own = [event for event in events if event.generation == generation]
    return [f"+{event.at - own[0].at:.2f} s {event.what} {event.node}" for event in own]

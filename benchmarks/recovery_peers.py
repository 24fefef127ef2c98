"""The peers' trainings: torchrun with DCP, and torchft in an environment of its own."""

import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks import recovery_stamps as stamps
from benchmarks.recovery_processes import command_line, is_alive, kill, tree, until
from benchmarks.recovery_stamps import Recovery, Stamp
from benchmarks.testbed import RankFailed

JOB = Path(__file__).parent / "recovery_job"
SETTLED_STEPS = 12  # after a start, before the next fault: longer than between two checkpoints
START_WITHIN_S = 120.0
RECOVERED_WITHIN_S = 120.0
TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
TORCHFT = Path(tempfile.gettempdir()) / "varuna-benchmark-torchft"


class Peer:
    """A training of somebody else; a context manager that ends all of it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vrng-"))
        self.children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            kill(tree(child.pid))
            child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stamps(self) -> list[Stamp]:
        """Steps so far."""
        return stamps.read(self.folder / "stamps")

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start one process, its output in a file."""
        with (self.folder / "output").open("ab") as output:
            child = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "STAMPS": str(self.folder / "stamps"), **environment},
            )
        self.children.append(child)
        return child

    def settle(self, world: int) -> None:
        """Wait until so many ranks have made some steps together."""

        def is_settled() -> bool:
            seen = self.stamps
            return sum(s.life == seen[-1].life and s.world == world for s in seen) >= SETTLED_STEPS

        self._until(lambda: bool(self.stamps) and is_settled(), "steps", START_WITHIN_S)

    def recovered(self, fault_s: float, within_s: float = RECOVERED_WITHIN_S) -> Recovery:
        """Wait for the first newly committed step."""
        self._until(lambda: stamps.recovery(self.stamps, fault_s) is not None, "a new step", within_s)
        found = stamps.recovery(self.stamps, fault_s)
        assert found is not None
        return found

    def _until(self, holds: object, what: str, within_s: float) -> None:
        assert callable(holds)
        try:
            until(holds, what, within_s)
        except RankFailed as err:
            end = (self.folder / "output").read_text(errors="replace")[-2000:]
            raise RankFailed(f"{type(self).__name__}: {err}\n{end}") from err


class Torchrun(Peer):
    """TorchElastic with its work-around for the stale store; each agent is a node."""

    def __init__(self, *, nodes: int, workers: int, settings: str = "") -> None:
        super().__init__()
        (self.folder / "checkpoints").mkdir()
        least = f"1:{nodes}" if nodes > 1 else "1"
        self._command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={least}"),
            *(f"--nproc-per-node={workers}", "--max-restarts=100", "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--rdzv-id=recovery", "--monitor-interval=0.1"),
        ]
        self._settings = settings
        self.agents = [self._agent(is_host=index == 0) for index in range(nodes)]

    def _agent(self, *, is_host: bool) -> subprocess.Popen[bytes]:
        settings = ",".join(filter(None, (f"is_host={is_host}", self._settings)))
        return self.start(
            [*self._command, "--rdzv-conf", settings, str(JOB / "elastic.py")],
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            CHECKPOINTS=str(self.folder / "checkpoints"),
        )

    def kill_worker(self, draw: random.Random) -> float:
        """SIGKILL one worker and return when."""
        below = [pid for agent in self.agents for pid in tree(agent.pid)[1:]]
        workers = [pid for pid in below if "elastic.py" in command_line(pid)]
        return kill([draw.choice(workers)])

    def kill_node(self) -> float:
        """SIGKILL the agent that does not host the store, with its workers."""
        return kill(tree(self.agents[-1].pid))


class Torchft(Peer):
    """A lighthouse and one process a replica."""

    def __init__(self, python: Path, *, replicas: int, heartbeat_ms: int, join_ms: int) -> None:
        super().__init__()
        self._python, self._num_replicas = python, replicas
        port = _free_port()
        limits = (f"--heartbeat_timeout_ms={heartbeat_ms}", f"--join_timeout_ms={join_ms}")
        lighthouse = str(python.parent / "torchft_lighthouse")
        self.start([lighthouse, "--min_replicas", "1", "--bind", f"127.0.0.1:{port}", *limits])
        self._lighthouse = f"http://127.0.0.1:{port}"
        self._replicas = {i: self._replica(i) for i in range(replicas)}

    def _replica(self, index: int) -> subprocess.Popen[bytes]:
        words: Mapping[str, str] = {
            "TORCHFT_LIGHTHOUSE": self._lighthouse,
            "REPLICA": str(index),
            "REPLICAS": str(self._num_replicas),
        }
        return self.start([str(self._python), str(JOB / "replica.py")], **words)

    def kill_worker(self, draw: random.Random) -> float:
        """SIGKILL one replica and return when."""
        return kill([self._replicas[draw.randrange(self._num_replicas)].pid])

    def bring_back(self) -> None:
        """Start the replicas that are gone."""
        for index, process in self._replicas.items():
            process.poll()
            if not is_alive(process.pid):
                self._replicas[index] = self._replica(index)


def installed_torchft(folder: Path = TORCHFT) -> Path | None:
    """Return the interpreter that has torchft, installed if it is not there; None if that does not work.

    Its environment sees our packages, so that both train with the same torch.
    """
    python = folder / "bin" / "python"
    if not _imports(python):
        shutil.rmtree(folder, ignore_errors=True)
        steps = ([sys.executable, "-m", "venv", str(folder)], [*_pip(python), "torchft-nightly"])
        for step in steps:
            if subprocess.run(step, check=False, capture_output=True, timeout=600).returncode:
                return None
            packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
            (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python if _imports(python) else None


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _imports(python: Path) -> bool:
    if not python.exists():
        return False
    words = [str(python), "-c", "import torchft"]
    return subprocess.run(words, check=False, capture_output=True, timeout=120).returncode == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port

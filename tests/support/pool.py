"""A local pool driven through the command line, as a user would; and the faults a spot market adds."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from varuna_manager.cloud.local_machines import LocalMachines
from varuna_manager.cloud.pool_file import Role
from varuna_manager.home import Home

CLI = [sys.executable, "-m", "varuna_manager.cli"]
JOBS = pathlib.Path(__file__).parent / "jobs"
TERMINAL = {"succeeded", "failed", "cancelled"}


@dataclass
class Pool:
    """`varuna` with a home of its own; every process it starts carries that home in its environment."""

    home: pathlib.Path
    env: dict[str, str]

    def run(self, *words: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run one `varuna` command to its end."""
        done = subprocess.run(
            [*CLI, *words], env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"varuna {' '.join(words)} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def json(self, *words: str) -> list[dict[str, object]]:
        """Run a command with --json and return its records."""
        text = self.run(*words, "--json").stdout
        if text.startswith("["):
            return list(json.loads(text))
        return [json.loads(text)] if text.startswith("{\n") else [json.loads(t) for t in text.splitlines()]

    def up(self, nodes: int, *words: str) -> None:
        """Bring the pool to `nodes` living nodes."""
        self.run("up", "-n", str(nodes), *words)

    def submit(self, folder: pathlib.Path, *words: str) -> str:
        """Submit `folder`/job.yaml and return the job's id."""
        return self.run("submit", str(folder / "job.yaml"), *words).stdout.split()[-1]

    def status(self, job: str) -> dict[str, object]:
        """Return the job's status record."""
        record = self.json("status", job)[0]
        return {**record, "state": str(record["state"]).lower()}

    def status_or_none(self, job: str) -> str | None:
        """Return the job's state, or None while no manager answers."""
        done = self.run("status", job, "--json", check=False)
        if done.returncode in (0, 1) and done.stdout.startswith(("[", "{")):
            value = json.loads(done.stdout)
            return str((value[0] if isinstance(value, list) else value)["state"]).lower()
        return None

    def node_pids(self) -> dict[str, int]:
        """Return the agents' pids by node, of those alive."""
        started = LocalMachines(Home(self.home)).started()
        pids = {s.name: s.process.pid for s in started if s.role is Role.AGENT}
        return {node: pid for node, pid in pids.items() if is_alive(pid)}

    def manager_pid(self) -> int:
        """Return the manager's pid."""
        return int(json.loads((self.home / "manager" / "manager.json").read_text())["process"]["pid"])

    def launcher_pids(self) -> list[int]:
        """Return the launchers of all nodes: children of agents."""
        below = (pid for agent in self.node_pids().values() for pid in children(agent))
        return sorted(pid for pid in below if "varuna_runtime.worker.launcher" in command_line(pid))

    def guard_pids(self) -> list[int]:
        """Return the guards of all nodes: children of agents, too."""
        below = (pid for agent in self.node_pids().values() for pid in children(agent))
        return sorted(pid for pid in below if "guard.py" in command_line(pid))

    def worker_pids(self) -> list[int]:
        """Return the workers of all nodes: the children of launchers."""
        return sorted(pid for launcher in self.launcher_pids() for pid in children(launcher))

    def planner_pids(self) -> list[int]:
        """Return the manager's planning processes."""
        return sorted(pid for pid in children(self.manager_pid()) if "spawn_main" in command_line(pid))

    def wait(
        self,
        job: str,
        until: Callable[[dict[str, object]], bool],
        timeout: float = 120,
        *,
        every_s: float = 0.2,
    ) -> dict[str, object]:
        """Poll the job's status until it satisfies `until`; fails with the last status and events."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                status = self.status(job)
            except AssertionError:  # the manager may be down by our own hand
                time.sleep(0.3)
                continue
            if until(status):
                return status
            time.sleep(every_s)
        raise AssertionError(f"timed out: {self.run('status', job, check=False).stdout}\n{self.trail(job)}")

    def wait_end(self, job: str, timeout: float = 180) -> dict[str, object]:
        """Wait for a terminal state; rarely, as each look is a command that takes CPU from the job."""
        return self.wait(job, lambda s: s["state"] in TERMINAL, timeout, every_s=2.0)

    def trail(self, job: str) -> str:
        """Return events and logs, for a failure's message."""
        events = self.run("events", job, check=False).stdout
        logs = self.run("logs", job, check=False).stdout
        return f"{events}\n--- logs\n{logs[-6000:]}"

    def processes(self) -> list[int]:
        """Return every living process of this pool, found by the home in its environment."""
        return carriers(self.home)


@contextlib.contextmanager
def pool(home: pathlib.Path, **env: str) -> Iterator[Pool]:
    """Yield a pool and take it down; asserts that nothing is left behind."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("VARUNA_")}
    stale = unowned_segments()  # of whatever was killed on this machine before
    with tempfile.TemporaryDirectory(prefix="pool-", dir="/tmp") as scratch:
        made = Pool(home=home, env={**inherited, "TMPDIR": scratch, "VARUNA_HOME": str(home), **env})
        try:
            yield made
        finally:
            made.run("down")
        wait_until(lambda: not made.processes(), "processes outlive `varuna down`")
        # Guards and the resource tracker of a killed manager remove theirs a moment later.
        wait_until(lambda: not leftovers(scratch), f"left behind in {scratch}: {leftovers(scratch)}")
        wait_until(lambda: unowned_segments() <= stale, "shared memory that no process uses is left behind")


def leftovers(scratch: str) -> list[str]:
    """Return what is in the temporary folder of a pool, but for a cache that torch makes for the user."""
    return sorted(p.name for p in pathlib.Path(scratch).iterdir() if not p.name.startswith("torchinductor_"))


def unowned_segments() -> set[str]:
    """Return the shared-memory segments that no living process has mapped."""
    segments = {str(path) for path in pathlib.Path("/dev/shm").iterdir()}
    for pid in all_pids():
        with contextlib.suppress(OSError):
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            segments -= {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line}
    return segments


def wait_until(holds: Callable[[], bool], why: str, timeout: float = 20) -> None:
    """Poll until `holds`; fails with `why`."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def all_pids() -> list[int]:
    """Return every pid of this machine."""
    return [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()]


def carriers(home: pathlib.Path) -> list[int]:
    """Return every living process that has `home` as its state home."""
    return [pid for pid in all_pids() if _carries(pid, f"VARUNA_HOME={home}".encode())]


def _carries(pid: int, word: bytes) -> bool:
    try:
        environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return word in environ.split(b"\0") and is_alive(pid)


def stat_fields(pid: int) -> list[str]:
    """Return /proc/<pid>/stat after the command name; empty when the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return True unless the process is gone or a zombie."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def command_line(pid: int) -> str:
    """Return the words of a process's command line; empty when it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    return [p for p in all_pids() if (fields := stat_fields(p)) and fields[1] == str(pid) and is_alive(p)]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process that may already be gone; 0 is none."""
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def copy_job(name: str, folder: pathlib.Path, **changes: str) -> pathlib.Path:
    """Copy a job folder and replace whole lines `key: ...` of its job.yaml."""
    shutil.copytree(JOBS / name, folder)
    path = folder / "job.yaml"
    lines = [line for line in path.read_text().splitlines() if line.split(":")[0] not in changes]
    path.write_text("\n".join(lines + [f"{key}: {value}" for key, value in changes.items()]) + "\n")
    return folder

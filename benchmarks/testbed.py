"""A cluster on one machine: network namespaces joined by a bridge, one forked process in each.

Leaves nothing behind: every name it makes has its own prefix and is deleted by that exact name.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

BURST = "32kbit"  # a bigger bucket lets whole messages pass for nothing
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    rank: int
    size: int
    hosts: tuple[str, ...]  # by rank
    port: int  # free on the first host
    interface: str

    @property
    def host(self) -> str:
        """This rank's own address."""
        return self.hosts[self.rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed call on all ranks."""

    wall_s: float  # from the agreed start to the last rank's end
    cpu_s: tuple[float, ...]  # of each rank's process, all its threads
    foreign: float  # cores kept busy by others meanwhile
    values: tuple[Any, ...]  # what each rank returned


Runner = Callable[[int], Any]  # round -> something small
Make = Callable[[Place], Mapping[str, Runner]]


class Network:
    """`size` namespaces on a switch of their own; `rate` as for tc, e.g. 200mbit, None for no limit."""

    def __init__(self, size: int, rate: str | None) -> None:
        self._prefix = f"vb{os.getpid() % 100000}"
        self._rate = rate
        self._switch = f"{self._prefix}s"
        self._names = [f"{self._prefix}n{i}" for i in range(size)]
        self.hosts = tuple(f"10.77.0.{i + 1}" for i in range(size))

    def __enter__(self) -> "Network":
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        run_command("ip", "netns", "add", self._switch)
        run_command("ip", "-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        run_command("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for index, (name, host) in enumerate(zip(self._names, self.hosts, strict=True)):
            port = f"port{index}"
            run_command("ip", "netns", "add", name)
            run_command(
                *("ip", "link", "add", "eth0", "netns", name, "type", "veth"),
                *("peer", "name", port, "netns", self._switch),
            )
            run_command("ip", "-n", self._switch, "link", "set", port, "master", "bridge0", "up")
            run_command("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            run_command("ip", "-n", name, "link", "set", "eth0", "up")
            run_command("ip", "-n", name, "link", "set", "lo", "up")
            if self._rate is not None:
                shape = ("rate", self._rate, "burst", BURST, "latency", "2s")
                run_command("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)

    def __exit__(self, *_: object) -> None:
        for name in (*self._names, self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def place(self, rank: int) -> Place:
        """Return the place of a rank."""
        return Place(rank=rank, size=len(self.hosts), hosts=self.hosts, port=29500, interface="eth0")

    def enter(self, rank: int) -> None:
        """Move the calling process, which has one thread, into the namespace of `rank`."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/var/run/netns", self._names[rank]).open() as namespace:
            if libc.setns(namespace.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")


class Loopback:
    """All ranks on 127.0.0.1, for what needs no network."""

    def __init__(self, size: int) -> None:
        self.hosts = ("127.0.0.1",) * size
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to delete."""

    def place(self, rank: int) -> Place:
        """Return the place of a rank."""
        return Place(rank=rank, size=len(self.hosts), hosts=self.hosts, port=self._port, interface="lo")

    def enter(self, rank: int) -> None:
        """Stay."""


class RankFailed(Exception):
    """A rank raised, died or did not answer; the message holds its traceback."""


class Ranks:
    """One forked process a rank, alive from case to case of a comparison; they run what they are told."""

    def __init__(self, network: Network | Loopback, make: Make, *, timeout_s: float = 60.0) -> None:
        """Fork; the calling process must have one thread, and torch imported so that no child has to."""
        self._timeout_s = timeout_s
        context = get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(len(network.hosts)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, network, rank, make), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> "Ranks":
        try:
            self._answers("start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def run(self, name: str, round_: int = 0) -> Run:
        """Run one configuration once on all ranks, which start together."""
        before = _busy_s()
        own_before = _cpu_s(os.getpid())
        start_s = time.monotonic() + 0.03
        for pipe in self._pipes:
            pipe.send((name, round_, start_s))
        answers = self._answers(name)
        after = _busy_s()
        end_s = max(end for end, _, _ in answers)
        cpu_s = tuple(cpu for _, cpu, _ in answers)
        own_s = sum(cpu_s) + _cpu_s(os.getpid()) - own_before
        return Run(
            wall_s=end_s - start_s,
            cpu_s=cpu_s,
            foreign=max(0.0, (after - before - own_s) / (time.monotonic() - start_s + 0.03)),
            values=tuple(value for _, _, value in answers),
        )

    def _answers(self, name: str) -> list[Any]:
        deadline_s = time.monotonic() + self._timeout_s
        answers: list[Any] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
                    self._show_stacks()
                    raise RankFailed(f"rank {rank} did not answer {name} within {self._timeout_s} s")
                answer = pipe.recv()
            except EOFError as err:
                raise RankFailed(f"rank {rank} died in {name}") from err
            if isinstance(answer, str):
                raise RankFailed(f"rank {rank} in {name}:\n{answer}")
            answers.append(answer)
        return answers

    def _show_stacks(self) -> None:
        """Let every rank write where it is to standard error."""
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)


def _serve(pipe: Connection, network: Network | Loopback, rank: int, make: Make) -> None:
    """Run in the child: build, then answer calls until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1)
    try:
        network.enter(rank)
        runners = make(network.place(rank))
        pipe.send((0.0, 0.0, None))
        while True:
            name, round_, start_s = pipe.recv()
            cpu_s = time.process_time()
            time.sleep(max(0.0, start_s - time.monotonic()))
            value = runners[name](round_)
            pipe.send((time.monotonic(), time.process_time() - cpu_s, value))
    except EOFError:
        pass
    except Exception:  # told to the parent, whatever it is
        with contextlib.suppress(OSError):
            pipe.send(traceback.format_exc())
    os._exit(0)


@contextlib.contextmanager
def cleaned_up() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that everything opened inside is closed."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _busy_s() -> float:
    """Return the CPU seconds spent in processes by all of this machine; not those in interrupts."""
    user, nice, system = Path("/proc/stat").read_text().splitlines()[0].split()[1:4]
    return (int(user) + int(nice) + int(system)) / _TICKS_PER_S


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def run_command(*words: str) -> None:
    """Run a command to its end; RuntimeError says what it wrote."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def machine() -> dict[str, str]:
    """Return what a figure depends on."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": f"{len(cpus)} x {cpus[0].partition(':')[2].strip()}" if cpus else "unknown",
        "memory": f"{int(memory) >> 20} GiB",
        "kernel": os.uname().release,
        **_versions(),
    }


def _versions() -> Mapping[str, str]:
    import platform

    import torch

    return {"python": platform.python_version(), "torch": torch.__version__}


def in_turns(ranks: Ranks, names: Sequence[str], rounds: int) -> Iterator[tuple[int, str, Run]]:
    """Run every configuration once a round, each round starting with another one."""
    for round_ in range(rounds):
        first = round_ % len(names)
        for name in (*names[first:], *names[:first]):
            yield round_, name, ranks.run(name, round_)

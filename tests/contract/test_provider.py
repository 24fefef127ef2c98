"""Every provider keeps the same promises."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.contract.provider_suite import PoolUnderTest, ProviderSuite
from tests.support.clouds.fake_gcp import PROJECT, FakeGcp, Fault, serving
from tests.support.fake_provider import FakeProvider
from tests.support.fake_ssh import FakeSsh
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.gcp.provider import GcpProvider
from varuna_manager.cloud.gcp.rest import Rest
from varuna_manager.cloud.local import LocalProvider
from varuna_manager.cloud.local_machines import AgentLaunch, LocalMachines
from varuna_manager.cloud.provider import Provider
from varuna_manager.cloud.ssh import Ssh
from varuna_manager.cloud.static import SshProvider
from varuna_manager.cloud.trace import TraceProvider
from varuna_manager.home import Home
from varuna_manager.pool_settings import GcpPool, SshHost, StaticPool, TracePool
from varuna_manager.traces import Change, Recording

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)")
LAUNCH = AgentLaunch(manager="127.0.0.1:1")


class FakePool:
    names_return = False

    def __init__(self) -> None:
        self._fake = FakeProvider()
        self.provider: Provider = self._fake

    def reopen(self) -> Provider:
        return self._fake

    def kill(self, node: str) -> None:
        self._fake.terminate(node)

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._fake.fails = "no answer"
        yield
        self._fake.fails = ""


class ProcessPool:
    """Nodes as sleeping processes; a damaged record makes every call fail."""

    names_return = False
    provider: Provider

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.machines = LocalMachines(self.home, "p", command=lambda *_: SLEEPER)

    def reopen(self) -> Provider:
        return LocalProvider(self.machines, LAUNCH)

    def kill(self, node: str) -> None:
        self.machines.kill(node)

    @contextmanager
    def failing(self) -> Iterator[None]:
        kept = self.home.pool_file.read_text()
        self.home.pool_file.write_text("{")
        yield
        self.home.pool_file.write_text(kept)


class TracePoolUnderTest(ProcessPool):
    """A recording that offers five machines for ever."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._notes = MemoryNotes()
        self._opened: list[TraceProvider] = []

    def reopen(self) -> Provider:
        offer = Change(at_s=0.0, joined=tuple(f"m{i}" for i in range(5)))
        recording = Recording(changes=(offer,), length_s=1.0)
        settings = TracePool(name="p", provider="trace", file="-")
        self._opened.append(TraceProvider(self.machines, LAUNCH, recording, settings, self._notes))
        return self._opened[-1]

    def close(self) -> None:
        for provider in self._opened:
            provider.close()


class SshPool:
    """Five hosts behind a program that plays `ssh`."""

    names_return = True

    def __init__(self, root: Path) -> None:
        self.ssh = FakeSsh(root)
        self._notes = MemoryNotes()
        hosts = tuple(SshHost(host=f"user@h{i}", node=f"n{i}") for i in range(5))
        self._settings = StaticPool(name="p", provider="static", hosts=hosts, command=str(self.ssh.agent))
        self.provider = self.reopen()

    def reopen(self) -> Provider:
        ssh = Ssh(str(self.ssh.program))
        return SshProvider(self._settings, notes=self._notes, manager_address="127.0.0.1:1", ssh=ssh)

    def kill(self, node: str) -> None:
        self.ssh.kill(f"user@h{node.removeprefix('n')}", node)

    @contextmanager
    def failing(self) -> Iterator[None]:
        self.ssh.break_down()
        yield
        self.ssh.mend()


class GcpPoolUnderTest:
    """A managed instance group of one zone; the place of a taken machine is filled again by its name."""

    names_return = True

    def __init__(self, endpoint: str, world: FakeGcp) -> None:
        self._endpoint, self._world, self._notes = endpoint, world, MemoryNotes()
        self._group = world.add_group("g", zone="z1-a")
        self._opened: list[Rest] = []
        self.provider = self.reopen()

    def reopen(self) -> Provider:
        settings = GcpPool(name="p", provider="gcp", project=PROJECT, group="g", zone="z1-a")
        self._opened.append(Rest(self._endpoint, is_anonymous=True))
        return GcpProvider(settings, self._opened[-1], self._notes)

    def close(self) -> None:
        for rest in self._opened:
            rest.close()

    def kill(self, node: str) -> None:
        self._world.preempt(self._group, node)

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._world.faults.append(Fault(".", 503, count=1000))
        yield
        self._world.faults.clear()


@contextmanager
def fake(_root: Path) -> Iterator[PoolUnderTest]:
    yield FakePool()


@contextmanager
def local(root: Path) -> Iterator[PoolUnderTest]:
    pool = ProcessPool(root)
    pool.provider = pool.reopen()
    try:
        yield pool
    finally:
        pool.machines.signal_all(signal.SIGKILL)


@contextmanager
def trace(root: Path) -> Iterator[PoolUnderTest]:
    pool = TracePoolUnderTest(root)
    pool.provider = pool.reopen()
    try:
        yield pool
    finally:
        pool.close()
        pool.machines.signal_all(signal.SIGKILL)


@contextmanager
def static_ssh(root: Path) -> Iterator[PoolUnderTest]:
    pool = SshPool(root)
    try:
        yield pool
    finally:
        pool.ssh.kill_all()


@contextmanager
def gcp(_root: Path) -> Iterator[PoolUnderTest]:
    world = FakeGcp()
    with serving(world) as endpoint:
        pool = GcpPoolUnderTest(endpoint, world)
        try:
            yield pool
        finally:
            pool.close()


OPENERS: dict[str, Callable[[Path], AbstractContextManager[PoolUnderTest]]] = {
    "fake": fake,
    "gcp": gcp,
    "local": local,
    "static-ssh": static_ssh,
    "trace": trace,
}


@pytest.fixture(params=sorted(OPENERS))
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PoolUnderTest]:
    with OPENERS[request.param](tmp_path) as opened:
        yield opened


class TestProvider(ProviderSuite):
    """The suite, for each of them."""

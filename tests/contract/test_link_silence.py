"""A peer in a process of its own that freezes, or behind a network that drops everything."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from tests.contract.test_link import Pair, awaited, over_gloo_beside
from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.pulse import Silence
from varuna_runtime.worker.link.tcp import TcpLink

ROOT = Path(__file__).parents[2]
MORE_THAN_SOCKETS_HOLD = torch.zeros(64 << 20, dtype=torch.uint8)


class Peer:
    """Rank 0, here, with rank 1 elsewhere."""

    def __init__(self, process: subprocess.Popen[str], host: str) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self.told: SimpleQueue[Silence] = SimpleQueue()
        addresses = {1: (host, int(process.stdout.readline()))}
        me = Identity(job="j", generation=1, rank=0, secret="s")
        self.link = TcpLink.join(me, None, addresses, [1], on_silence=self.told.put)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def echoes(self) -> bool:
        sent = torch.randn(5)
        self.link.send(1, "there", (sent,))
        return awaited(self.link, 1, "back")[0].equal(sent)


@contextmanager
def peer(host: str = "127.0.0.1", *before: str) -> Iterator[Peer]:
    words = [*before, sys.executable, "-m", "tests.support.peer_main", host]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = Peer(process, host)
            yield found
            found.link.close()
        finally:
            process.kill()


def test_a_frozen_peer_is_told_as_silent_and_loses_nothing_if_it_thaws() -> None:
    with peer() as other:
        assert other.echoes()
        other.signal(signal.SIGSTOP)
        silence = other.told.get(timeout=30)
        assert silence.rank == 1
        assert silence.silent_s > 0
        other.signal(signal.SIGCONT)
        assert other.told.get(timeout=30) == Silence(1, 0.0)
        assert other.echoes()


def test_a_rank_that_waits_for_a_frozen_peer_tells_it_as_well() -> None:
    with peer() as other, ThreadPoolExecutor(1) as pool:
        other.signal(signal.SIGSTOP)
        waiting = pool.submit(other.echoes)
        assert other.told.get(timeout=30).silent_s > 0
        other.signal(signal.SIGCONT)
        assert waiting.result()


def test_an_end_with_full_buffers_does_not_wait_for_a_frozen_peer() -> None:
    with peer() as other:
        other.signal(signal.SIGSTOP)
        other.link.send(1, "there", (MORE_THAN_SOCKETS_HOLD,))
        other.link.abort(Fault(rank=0, cause=Cause.USER_ERROR, message="boom"))
        assert Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def apart() -> Iterator[str]:
    """A network namespace on the other end of a cable, `vrnf-here`."""
    name = f"vrnf-{os.getpid()}"
    steps = [
        f"ip netns add {name}",
        f"ip link add vrnf-here type veth peer name vrnf-there netns {name}",
        "ip addr add 10.203.117.1/30 dev vrnf-here",
        "ip link set vrnf-here up",
        f"ip -n {name} addr add 10.203.117.2/30 dev vrnf-there",
        f"ip -n {name} link set vrnf-there up",
    ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespace here: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", "vrnf-here"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_a_peer_behind_a_dead_cable_is_silent_until_the_cable_lives(apart: str) -> None:
    with peer("10.203.117.2", "ip", "netns", "exec", apart) as other:
        assert other.echoes()
        cable = ["ip", "-n", apart, "link", "set", "vrnf-there"]
        subprocess.run([*cable, "down"], check=True)
        assert other.told.get(timeout=30).silent_s > 0
        subprocess.run([*cable, "up"], check=True)
        assert other.told.get(timeout=60) == Silence(1, 0.0)
        assert other.echoes()


def test_a_link_over_torchs_group_hears_of_faults_beside_it() -> None:
    links: Pair = over_gloo_beside()
    links[0].abort(Fault(rank=0, cause=Cause.USER_ERROR, message="boom"))
    with pytest.raises((PeerFailed, PeerLost)):
        awaited(links[1], 0, "never")
    links[1].close()

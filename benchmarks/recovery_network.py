"""Namespaces for the nodes of a pool, on a switch that this machine reaches too; links can be cut."""

import os
from pathlib import Path

from benchmarks.testbed import BURST
from benchmarks.testbed import run_command as command
from varuna_manager.cloud.local_machines import AgentLaunch, agent_command

_SUBNET = "10.79.0"


class Network:
    """A context manager; what it makes is named vrng-, with our pid, and is deleted by that name."""

    def __init__(self, size: int, rate: str | None = None) -> None:
        self._rate = rate
        self._tag = f"vrng{os.getpid() % 100000}"
        self._switch = f"{self._tag}-s"
        self._names = [f"{self._tag}-{index}" for index in range(size)]
        self.host = f"{_SUBNET}.254"  # of this machine

    def __enter__(self) -> "Network":
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self._names, self._switch):
            if Path("/var/run/netns", name).exists():
                command("ip", "netns", "del", name)

    def agent_command(self, launch: AgentLaunch, node: str, folder: str) -> tuple[str, ...]:
        """Return the command line of an agent; local-1 lives in the first namespace, and so on round."""
        index = self._index(node)
        inside = ("ip", "netns", "exec", self._names[index])
        return (*inside, *agent_command(launch, node, folder), "--host", f"{_SUBNET}.{index + 1}")

    def cut(self, node: str) -> None:
        """Take the link of a node down: no packet gets in or out, and nobody is told."""
        self._link(node, "down")

    def mend(self, node: str) -> None:
        """Bring the link of a node up again."""
        self._link(node, "up")

    def _link(self, node: str, state: str) -> None:
        # At the switch: inside the namespace the kernel would tell its own sockets that there is no route.
        command("ip", "-n", self._switch, "link", "set", f"port{self._index(node)}", state)

    def _index(self, node: str) -> int:
        return (int(node.rpartition("-")[2]) - 1) % len(self._names)

    def _build(self) -> None:
        switch = ("ip", "-n", self._switch)
        command("ip", "netns", "add", self._switch)
        command(*switch, "link", "add", "bridge0", "type", "bridge")
        command(*switch, "link", "set", "bridge0", "up")
        ours = f"{self._tag}h"
        command(*("ip", "link", "add", ours, "type", "veth", "peer", "name", "host", "netns", self._switch))
        command(*switch, "link", "set", "host", "master", "bridge0", "up")
        command("ip", "addr", "add", f"{self.host}/24", "dev", ours)
        command("ip", "link", "set", ours, "up")
        for index, name in enumerate(self._names):
            self._add(index, name)

    def _add(self, index: int, name: str) -> None:
        port, inside = f"port{index}", ("ip", "-n", name)
        command("ip", "netns", "add", name)
        command(
            *("ip", "link", "add", "eth0", "netns", name, "type", "veth"),
            *("peer", "name", port, "netns", self._switch),
        )
        command("ip", "-n", self._switch, "link", "set", port, "master", "bridge0", "up")
        command(*inside, "addr", "add", f"{_SUBNET}.{index + 1}/24", "dev", "eth0")
        command(*inside, "link", "set", "eth0", "up")
        command(*inside, "link", "set", "lo", "up")
        if self._rate is not None:
            shape = ("rate", self._rate, "burst", BURST, "latency", "2s")
            command("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)

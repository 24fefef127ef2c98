"""The two clouds that an installation can run on here, each as the bridge sees it and as a test drives it."""

import time
from collections.abc import Sequence
from typing import Protocol

from tests.support.clouds.azure_world import ScaleSet, World, scheduled_events
from tests.support.clouds.fake_azure import FakeAzure
from tests.support.clouds.market import Market
from tests.support.clouds.metadata_server import MetadataServer
from tests.support.clouds.moto import Group


class Site(Protocol):
    """A cloud in the hands of a test, past any fault."""

    def running(self) -> Sequence[str]:
        """Return the nodes whose machines run, the oldest first."""
        ...

    def billed(self) -> Sequence[str]:
        """Return every machine that costs money, whatever group it is in, if any."""
        ...

    def plug_in(self, node: str, metadata: MetadataServer) -> None:
        """Tell a new machine's metadata service who it is."""
        ...

    def refresh(self, node: str, metadata: MetadataServer) -> None:
        """Carry words between a machine's metadata service and the cloud; called all the time."""
        ...

    def reclaim(self, node: str, in_s: float | None = None) -> None:
        """Take a machine back as the market does: after a notice of `in_s`, or at once and without one."""
        ...

    def lend(self, stock: int | None) -> None:
        """Have this many machines in all, those that run included; None: any number."""
        ...

    def desired(self) -> int:
        """Return the target that the group has."""
        ...


class AwsSite:
    """An Auto Scaling group on moto, behind a market."""

    def __init__(self, group: Group, market: Market) -> None:
        self.group = group
        self.market = market
        self._ends_at_s: dict[str, float] = {}

    def running(self) -> Sequence[str]:
        now_s = time.time()
        for node in [node for node, at_s in self._ends_at_s.items() if now_s >= at_s]:
            del self._ends_at_s[node]
            self.group.preempt(node)
        return self.market.settle(self.group)

    def billed(self) -> Sequence[str]:
        return self.group.running()

    def plug_in(self, node: str, metadata: MetadataServer) -> None:
        metadata.identify(node)

    def refresh(self, node: str, metadata: MetadataServer) -> None:
        at_s = self._ends_at_s.get(node)
        if at_s is not None:
            metadata.interrupt(at_s)

    def reclaim(self, node: str, in_s: float | None = None) -> None:
        if in_s is None:
            self.group.preempt(node)
        else:
            self._ends_at_s[node] = time.time() + in_s

    def lend(self, stock: int | None) -> None:
        self.market.stock = stock

    def desired(self) -> int:
        return self.group.desired


class AzureSite:
    """A scale set of the fake Azure."""

    def __init__(self, azure: FakeAzure, scale_set: str) -> None:
        self.azure = azure
        self._name = scale_set

    def running(self) -> Sequence[str]:
        with self.azure.locked() as world:
            return [m.name for m in self._set(world).living() if m.state == "running"]

    def billed(self) -> Sequence[str]:
        with self.azure.locked() as world:
            return [m.name for s in world.sets.values() for m in s.machines.values()]

    def plug_in(self, node: str, metadata: MetadataServer) -> None:
        metadata.identify(node)

    def refresh(self, node: str, metadata: MetadataServer) -> None:
        with self.azure.locked() as world:
            scale_set = self._set(world)
            acknowledged = metadata.take_acknowledged()
            if acknowledged:
                world.acknowledge(scale_set, acknowledged, node)
            metadata.publish(scheduled_events(scale_set))

    def reclaim(self, node: str, in_s: float | None = None) -> None:
        with self.azure.locked() as world:
            scale_set, machine = world.find(node)
            if in_s is None:
                world.evict(scale_set, machine)
            else:
                world.schedule(scale_set, machine, "Preempt", in_s)

    def lend(self, stock: int | None) -> None:
        with self.azure.locked() as world:
            taken = len(self._set(world).living())
            world.rules.stock = None if stock is None else max(0, stock - taken)

    def desired(self) -> int:
        with self.azure.locked() as world:
            return self._set(world).capacity

    def _set(self, world: World) -> ScaleSet:
        return world.sets[self._name]

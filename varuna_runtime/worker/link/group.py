"""Forms the process groups of one generation; a port is bound by its owner, so it cannot be stolen."""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

FOREVER = timedelta(days=30)  # a silent peer is found by liveness beats, not by a timeout here


class Work(Protocol):
    """A transfer under way."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Block until it is done; raises RuntimeError if the peer is gone."""
        ...


class PointToPoint(Protocol):
    """What is used of a process group; torch's stubs leave it out."""

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int, /) -> Work:
        """Start to send."""
        ...

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int, /) -> Work:
        """Start to receive."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one generation, connected; `nccl` is None where device tensors go through host memory."""

    rank: int
    world_size: int
    device: torch.device
    gloo: PointToPoint
    nccl: "NcclPair | None"


@dataclass(frozen=True, slots=True)
class NcclPair:
    """One group for each direction: on one communicator two ranks that both send first block each other."""

    up: PointToPoint  # messages to a higher rank
    down: PointToPoint

    def between(self, source: int, to: int) -> PointToPoint:
        """Return the group that carries messages from `source` to `to`."""
        return self.up if source < to else self.down


def host_store(host: str, *, timeout_s: float = 300.0) -> TCPStore:
    """Open the generation's store on a free port of `host`; its `.port` tells which."""
    listener = socket.create_server((host, 0), backlog=1024)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )


def join_store(host: str, port: int, *, timeout_s: float = 300.0) -> TCPStore:
    """Connect to the store that rank 0 opened."""
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def form_group(
    *,
    rank: int,
    world_size: int,
    host: str,
    store: Store,
    generation: int,
    timeout_s: float = 300.0,
    device: torch.device | None = None,
    use_nccl: bool = False,
) -> Group:
    """Connect all ranks; every rank calls it with its own `host` address, on which alone it listens.

    `use_nccl` asks that CUDA tensors go from device to device; each rank then needs a device of its own.
    Raises RuntimeError when not all ranks came within `timeout_s`.
    """
    scoped = PrefixStore(f"generation {generation}", store)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
    # By address: the default looks the host name up, or needs the name of a network interface.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout_s)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo", scoped), rank, world_size, options)
    device = device or torch.device("cpu")
    nccl = _nccl_pair(rank, world_size, scoped) if use_nccl and device.type == "cuda" else None
    return Group(rank, world_size, device, cast(PointToPoint, gloo), nccl)


def _nccl_pair(rank: int, world_size: int, store: Store) -> NcclPair:
    def one_way(direction: str) -> PointToPoint:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = FOREVER
        scoped = PrefixStore(f"nccl {direction}", store)
        return cast(PointToPoint, dist.ProcessGroupNCCL(scoped, rank, world_size, options))

    return NcclPair(up=one_way("up"), down=one_way("down"))

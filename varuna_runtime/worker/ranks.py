"""The two kinds of rank a Prepare can ask for, from what they share: plan, store, rendezvous, group."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import TCPStore

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Vault
from varuna_runtime.spec.errors import ModelRefused, PlanMismatch
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker.failing import StartFailed
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group, host_store, join_store
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.meeting import Address, meet
from varuna_runtime.worker.link.pulse import OnSilence, untold
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.peers import peers_of
from varuna_runtime.worker.rendezvous import Rendezvous

if TYPE_CHECKING:
    from varuna_runtime.worker.mailbox import Mailbox
    from varuna_runtime.worker.progress import Progress
    from varuna_runtime.worker.session import Rank
    from varuna_runtime.worker.training import Training

_CPU = "cpu"
_MEET_S = 60.0  # all ranks are prepared by now; longer means that one is gone


def rank_for(
    request: worker_pb2.PrepareRequest,
    training: "Training",
    partitioned: PartitionedModel,
    mailbox: "Mailbox",
    progress: "Progress",
) -> "Rank":
    """Return the rank the request asks for, nothing built yet. Raises VarunaError on an odd request."""
    from varuna_runtime.worker.profile_rank import ProfileRank
    from varuna_runtime.worker.train_rank import TrainRank

    order = RankOrder.of(request, partitioned)
    if request.kind == common_pb2.GenerationKind.PROFILE:
        return ProfileRank(order, training, partitioned, progress)
    return TrainRank(order, training, partitioned, mailbox, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """A Prepare request, parsed and checked."""

    job: str
    generation: int
    rank: int
    plan: Plan
    spec: JobSpec
    model: ModelRecord
    store_url: str
    resume_step: int | None
    host: str
    secret: str = field(repr=False)
    vault_socket: str = ""  # of this node; empty: no copies are kept here
    copies_secret: str = field(repr=False, default="")
    may_have_copies: bool = False  # somewhere, here included; if not, none is looked for
    vaults: tuple[Vault, ...] = ()  # of the other nodes that may hold copies
    buddies: tuple[Vault, ...] = ()
    unmended_s: float = (
        0.0  # mean time between losses that no copies mend, as the manager expects; 0: unknown
    )

    @classmethod
    def of(cls, request: worker_pb2.PrepareRequest, partitioned: PartitionedModel) -> "RankOrder":
        """Raises InvalidInput, PlanMismatch, or ModelRefused when the script makes another model here."""
        plan = canonical.loads(Plan, request.plan_json)
        model = canonical.loads(ModelRecord, request.model_json)
        if not 0 <= request.rank < plan.layout.world_size:
            raise PlanMismatch(f"rank {request.rank} is not in a {plan.layout} plan")
        if partitioned.record_segments != model.segments:
            raise ModelRefused(
                "the script builds another model on this node than it did at submit: "
                f"{len(partitioned.record_segments)} segments here, {len(model.segments)} then; "
                "it must depend on its arguments and files only"
            )
        return cls(
            job=request.job,
            generation=request.generation,
            rank=request.rank,
            plan=plan,
            spec=canonical.loads(JobSpec, request.job_json),
            model=model,
            store_url=request.store_url,
            resume_step=request.resume_step if request.HasField("resume_step") else None,
            host=request.host,
            secret=request.generation_secret,
            vault_socket=request.vault_socket,
            copies_secret=request.copies_secret,
            may_have_copies=bool(request.vaults),
            vaults=tuple(v for v in _vaults(request.vaults) if v.node != plan.placement[request.rank].node),
            buddies=_vaults(request.buddies),
            unmended_s=request.unmended_s,
        )


class Group:
    """This rank's way to the others.

    Rank 0 serves the store at which all meet; every other rank listens for the ranks below it.
    """

    def __init__(self, order: RankOrder) -> None:
        """Bind the port that the others will call; raises StartFailed where that cannot be done."""
        self._order = order
        self._world_size = order.plan.layout.world_size
        self._served: TCPStore | None = None
        self._listener: socket | None = None
        try:
            if order.rank == 0:
                self._served = host_store(order.host, timeout_s=_MEET_S)
            else:
                self._listener = listen(order.host)
        except (OSError, RuntimeError) as err:
            raise StartFailed(
                f"nothing can listen on {order.host}: {err}; "
                "the agent's --host must be an address of its machine"
            ) from err
        self._addresses: dict[int, Address] = {}
        self._rendezvous: Rendezvous | None = None

    @property
    def endpoint(self) -> common_pb2.Endpoint:
        """Where the other ranks reach this one: rank 0's store, another rank's end of the link."""
        port = self._served.port if self._served is not None else self._listening_port()
        return common_pb2.Endpoint(rank=self._order.rank, host=self._order.host, port=port)

    def meet(self, endpoints: list[common_pb2.Endpoint]) -> Rendezvous:
        """Connect to rank 0 and compare plan and generation."""
        self._addresses = {endpoint.rank: (endpoint.host, endpoint.port) for endpoint in endpoints}
        meeting = Rendezvous(self.connect(), rank=self._order.rank, world_size=self._world_size)
        meeting.agree("plan", f"{self._order.plan.hash()} of generation {self._order.generation}")
        self._rendezvous = meeting
        return meeting

    def connect(self) -> TCPStore:
        """Return one more connection to rank 0's store."""
        return join_store(*self._addresses[0], timeout_s=_MEET_S)

    def join(self, device: torch.device, *, on_silence: OnSilence = untold) -> Link:
        """Connect with the peers; after `meet`. `on_silence` hears of those that fall silent later.

        Tensors in host memory go over connections of our own. If any rank has a GPU, all use torch's groups:
        NCCL where each has one of its own, else gloo; our own connections then carry beats and faults.
        """
        assert self._rendezvous is not None
        devices = self._rendezvous.gather("device", _identity(device))
        peers = peers_of(self._order.plan, self._order.rank, self._order.model.tied)
        connections = self._connections(peers)
        if set(devices) == {_CPU}:
            return TcpLink(self._order.rank, connections, on_silence=on_silence)
        group = form_group(
            rank=self._order.rank,
            world_size=self._world_size,
            host=self._order.host,
            store=self.connect(),
            generation=self._order.generation,
            timeout_s=_MEET_S,
            device=device,
            use_nccl=device.type == "cuda" and len(set(devices)) == self._world_size,  # one GPU each
        )
        return DistLink(group, peers, connections, on_silence=on_silence)

    def _connections(self, peers: tuple[int, ...]) -> dict[int, socket]:
        order = self._order
        if peers and not order.secret:
            raise StartFailed(
                "the generation came without a secret, by which its ranks would know each other"
            )
        me = Identity(job=order.job, generation=order.generation, rank=order.rank, secret=order.secret)
        return meet(me, self._listener, self._addresses, peers, timeout_s=_MEET_S)

    def _listening_port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.getsockname()[1]
        return port

    def stop_listening(self) -> None:
        """Let no rank call this one any more; idempotent."""
        if self._listener is not None:
            self._listener.close()

    def leave(self) -> None:
        """Wait, on rank 0, until nobody needs its store."""
        if self._rendezvous is not None:
            self._rendezvous.leave()


def _vaults(messages: Iterable[common_pb2.Vault]) -> tuple[Vault, ...]:
    return tuple(Vault(node=v.node, host=v.host, port=v.port) for v in messages)


def device_of(slot: int) -> torch.device:
    """Return the device of a slot: its GPU where there are any, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", slot % torch.cuda.device_count())
    return torch.device("cpu")


def _identity(device: torch.device) -> str:
    """Return a word that no other device in the world has; of no use for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else _CPU

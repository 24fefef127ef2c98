"""One rank of a measuring generation: ranks 0 and 1 time link and sums, then rank 0 the segments alone."""

from dataclasses import replace

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec import canonical
from varuna_runtime.spec.profile import LinkCost, ReduceCost
from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker import clock
from varuna_runtime.worker.failing import fault_of
from varuna_runtime.worker.link.late import LateLink
from varuna_runtime.worker.link_probe import measure_link, with_inner_link, with_link
from varuna_runtime.worker.profiling import kind_of, measure
from varuna_runtime.worker.progress import Progress
from varuna_runtime.worker.ranks import Group, RankOrder, device_of
from varuna_runtime.worker.reduce_probe import measure_reductions
from varuna_runtime.worker.session import LastWord
from varuna_runtime.worker.training import Training


class ProfileRank:
    """See `session.Rank`."""

    def __init__(
        self, order: RankOrder, training: Training, partitioned: PartitionedModel, progress: Progress
    ) -> None:
        self._order = order
        self._training = training
        self._partitioned = partitioned
        self._progress = progress
        self._device = device_of(order.plan.placement[order.rank].index)
        self._group = Group(order)
        self._link = LateLink(order.rank)

    def prepare(self) -> worker_pb2.PrepareReply:
        """Nothing is loaded."""
        return worker_pb2.PrepareReply(
            plan_hash=self._order.plan.hash(), endpoint=self._group.endpoint, resume_step=0
        )

    def activate(self, request: worker_pb2.ActivateRequest) -> None:
        """Agree on the plan, then join the group."""
        self._group.meet(list(request.endpoints))
        self._link.attach(self._group.join(self._device, on_silence=self._progress.peer_silent))

    def run(self) -> LastWord:
        """Measure; only rank 0 has a profile to tell."""
        self._progress.tell(worker_pb2.WorkerProgress(active=worker_pb2.WorkerActive(step=0)))
        cost, sums = self._link_cost()
        profile_json = self._profile_json(cost, sums) if self._order.rank == 0 else b""
        finished = common_pb2.Finished(step=0, profile_json=profile_json)
        return LastWord(message=worker_pb2.WorkerProgress(finished=finished))

    def close(self) -> None:
        """Say goodbye to the peers."""
        self._link.close()
        self._group.leave()

    def abandon(self, err: BaseException) -> None:
        """Tell the peers."""
        self._link.abort(fault_of(err, self._order.rank))

    def _link_cost(self) -> tuple[LinkCost | None, tuple[ReduceCost, ...]]:
        plan = self._order.plan
        if plan.layout.world_size < 2 or self._order.rank > 1:
            return None, ()
        cost = measure_link(self._link, 1 - self._order.rank, clock=clock.now_s)
        crosses_nodes = plan.placement[0].node != plan.placement[1].node
        sums = measure_reductions(self._link, self._device, clock=clock.now_s, crosses_nodes=crosses_nodes)
        return cost, sums

    def _profile_json(self, cost: LinkCost | None, sums: tuple[ReduceCost, ...]) -> bytes:
        nodes = self._order.plan.nodes
        profile = measure(
            self._training,
            self._partitioned,
            self._order.spec,
            self._device,
            device_kind=kind_of(self._device),
            measured_on=nodes[0],
        )
        if cost is not None and len(nodes) == 1:
            profile = with_inner_link(profile, cost, node=nodes[0])
        elif cost is not None:
            profile = with_link(profile, cost, measured_on=" and ".join(nodes))
        return canonical.dumps(replace(profile, reductions=sums))

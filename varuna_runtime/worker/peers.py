"""Which ranks exchange messages under a plan: the link needs threads for these pairs only."""

from collections.abc import Sequence

from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.model import TiedParameter
from varuna_runtime.worker.ties import tie_exchange


def peers_of(plan: Plan, rank: int, tied: Sequence[TiedParameter]) -> tuple[int, ...]:
    """Return the ranks that `rank` talks to, ascending; the relation is symmetric.

    Neighbours in the pipeline, the replicas of the stage, stages that share a tied parameter, and rank 0.
    """
    layout = plan.layout
    stage, replica = layout.stage_of(rank), layout.replica_of(rank)
    stages = {stage - 1, stage + 1, *tie_exchange(stage, plan.stages, tied).partner_stages}
    found = {layout.rank(stage=s, replica=replica) for s in stages if 0 <= s < layout.stages}
    found |= {layout.rank(stage=stage, replica=d) for d in range(layout.replicas)}
    found |= set(range(layout.world_size)) if rank == 0 else {0}
    return tuple(sorted(found - {rank}))

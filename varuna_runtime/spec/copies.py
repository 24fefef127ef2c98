"""Copies of a rank's state in the memory of nodes: what one is, which steps can be loaded, where they go.

A copy holds what one rank had after a step, in the names of checkpoints (`param:`, `buffer:`, `optim:`). A
version is loadable for some segments if copies of it hold them whole. All ranks load the same version.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.manifest import TrainerState


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Version:
    """State after `step` committed steps, as one generation had it.

    Generation 0 stands for the store: a durable step, or the initial weights where `step` is 0.
    """

    step: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Copy:
    """What one rank of a generation held, without its contents; also an entry of a node's inventory."""

    job: str
    version: Version
    rank: int
    replica: int  # of the layout that wrote it
    replicas: int
    segments: tuple[int, ...]  # ascending
    is_shared: bool  # optimizer state in shares: a segment is whole only with the copies of all replicas
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTensor:
    """One tensor inside a copy's bytes; `name`, `shape` and `dtype` as in the manifest's TensorEntry."""

    segment: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int  # a multiple of 64
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """A copy with what is needed to read it; `trainer.step` is its step."""

    copy: Copy
    tensors: tuple[CopiedTensor, ...]
    trainer: TrainerState


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Vault:
    """Where the copies that a node holds can be fetched and stored."""

    node: str
    host: str
    port: int


def loadable(copies: Iterable[Copy], needed: Collection[int]) -> tuple[Version, ...]:
    """Return the versions of which `copies` hold every needed segment whole, newest first."""
    by_version: dict[Version, list[Copy]] = {}
    for copy in copies:
        by_version.setdefault(copy.version, []).append(copy)
    found = [v for v, held in by_version.items() if all(is_whole(held, segment) for segment in needed)]
    return tuple(sorted(found, reverse=True))


def is_whole(copies: Sequence[Copy], segment: int) -> bool:
    """Return whether copies of one version hold the segment whole."""
    holders = [copy for copy in copies if segment in copy.segments]
    if any(not copy.is_shared for copy in holders):
        return True
    return bool(holders) and {copy.replica for copy in holders} == set(range(holders[0].replicas))


def newest_common(offered: Iterable[Collection[Version]]) -> Version | None:
    """Return the newest version that every rank can load; of equal steps, one out of memory."""
    common: set[Version] | None = None
    for versions in offered:
        common = set(versions) if common is None else common & set(versions)
    return max(common) if common else None


def buddies(
    plan: Plan, domains: Mapping[str, str], *, able: Collection[str], is_shared: bool
) -> dict[int, tuple[str, ...]]:
    """Return, by rank, the nodes that keep a copy of its state beside its own; ranks without are left out.

    The state of a stage is to be on two nodes, on three where it has three or more replicas: so any single
    loss, and with three replicas any two, leave a copy. Replicas on different nodes count where each holds
    the whole (`is_shared` is false). Others are taken by fewest copies so far, another domain first, then
    in the plan's order from the rank's own node on. `domains` gives the zone of each node, `able` are those
    with a vault: no other holds a copy, and a rank elsewhere has none to send.
    """
    nodes = [node for node in plan.nodes if node in able]
    load = dict.fromkeys(nodes, 0)
    wanted = min(len(nodes), 3 if plan.layout.replicas >= 3 else 2)
    found: dict[int, tuple[str, ...]] = {}
    for rank in range(plan.layout.world_size):
        own = plan.placement[rank].node
        stage = plan.layout.stage_of(rank)
        replicas = (plan.layout.rank(stage=stage, replica=d) for d in range(plan.layout.replicas))
        peers = [peer for peer in replicas if plan.placement[peer].node in able]
        if rank not in peers if is_shared else rank not in peers[:1]:
            continue  # it has nothing to send; or equal bits: one replica of a stage sends for all
        holders = [own] if is_shared else list(dict.fromkeys(plan.placement[p].node for p in peers))
        start = nodes.index(own)
        others = [node for node in nodes[start + 1 :] + nodes[:start] if node not in holders]
        chosen: list[str] = []
        while len(holders) + len(chosen) < wanted and others:
            taken = {domains.get(node, "") for node in (*holders, *chosen)}
            best = min(others, key=lambda n: (load[n], domains.get(n, "") in taken, others.index(n)))
            others.remove(best)
            chosen.append(best)
            load[best] += 1
        if chosen:
            found[rank] = tuple(chosen)
    return found

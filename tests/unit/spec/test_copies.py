"""Which versions can be loaded, and where copies go."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from varuna_runtime.spec.copies import Copy, Version, buddies, loadable, newest_common
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage


def copy_of(step: int, rank: int, segments: tuple[int, ...], **changes: object) -> Copy:
    fields: dict[str, object] = {
        "job": "j",
        "version": Version(step=step, generation=1),
        "rank": rank,
        "replica": 0,
        "replicas": 1,
        "segments": segments,
        "is_shared": False,
        "num_bytes": 1,
    }
    return Copy(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_version_is_loadable_when_every_needed_segment_is_held() -> None:
    copies = [copy_of(4, 0, (0, 1)), copy_of(4, 1, (2,)), copy_of(5, 0, (0, 1))]
    assert loadable(copies, (0, 2)) == (Version(step=4, generation=1),)
    assert [v.step for v in loadable(copies, (1,))] == [5, 4]


def test_shares_make_a_segment_whole_only_together() -> None:
    shares = [copy_of(4, d, (0,), replica=d, replicas=2, is_shared=True) for d in (0, 1)]
    assert loadable(shares[:1], (0,)) == ()
    assert loadable(shares, (0,)) == (Version(step=4, generation=1),)


def test_the_newest_version_that_all_can_load_is_taken() -> None:
    a, b, c = (Version(step=n, generation=g) for n, g in ((7, 3), (6, 3), (6, 0)))
    assert newest_common([(a, b, c), (b, c), (b, c)]) == b
    assert newest_common([(a,), (b,)]) is None
    assert newest_common([]) is None


def plan_on(stages: int, replicas: int, nodes: list[str]) -> Plan:
    layout = Layout(stages=stages, replicas=replicas)
    return Plan(
        layout=layout,
        stages=tuple(Stage(first=i, last=i + 1, recompute=False) for i in range(stages)),
        schedule=ScheduleKind.GPIPE,
        batch=BatchShape(batch_size=64, micro_batch_size=1, virtual_replicas=64),
        placement=tuple(
            Slot(node=nodes[i % len(nodes)], index=i // len(nodes)) for i in range(layout.world_size)
        ),
        predicted_step_s=1.0,
    )


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 12), st.booleans(), st.integers(1, 3))
def test_losses_of_nodes_leave_a_copy(
    stages: int, replicas: int, num_nodes: int, is_shared: bool, num_domains: int
) -> None:
    plan = plan_on(stages, replicas, [f"n{i:02d}" for i in range(num_nodes)])
    domains = {node: f"zone-{i % num_domains}" for i, node in enumerate(plan.nodes)}
    kept = buddies(plan, domains, able=plan.nodes, is_shared=is_shared)
    num_losses = min(len(plan.nodes) - 1, 2 if replicas >= 3 else 1)
    for lost in combinations(plan.nodes, num_losses):
        for stage in range(stages):
            ranks = [plan.layout.rank(stage=stage, replica=d) for d in range(replicas)]
            for group in [[r] for r in ranks] if is_shared else [ranks]:
                held = {plan.placement[r].node for r in group}
                held |= {node for r in group for node in kept.get(r, ())}
                assert held - set(lost)


def test_a_buddy_in_another_zone_is_preferred() -> None:
    plan = plan_on(2, 1, ["a", "b", "c"][:2])
    assert buddies(plan, {}, able=plan.nodes, is_shared=False) == {0: ("b",), 1: ("a",)}
    four = plan_on(4, 1, ["a", "b", "c", "d"])
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    kept = buddies(four, zones, able=four.nodes, is_shared=False)
    assert all(zones[kept[r][0]] != zones[four.placement[r].node] for r in range(4))
    assert len(set(kept.values())) == 4


def test_a_node_without_a_vault_is_nobodys_buddy_and_another_takes_its_place() -> None:
    four = plan_on(4, 1, ["a", "b", "c", "d"])
    kept = buddies(four, {}, able={"a", "c", "d"}, is_shared=False)
    assert kept.keys() == {0, 2, 3}
    assert all(set(names) <= {"a", "c", "d"} for names in kept.values())


def test_a_replica_on_a_node_without_a_vault_counts_for_no_copy() -> None:
    pair = plan_on(1, 2, ["a", "b", "c"])
    assert buddies(pair, {}, able={"b"}, is_shared=False) == {}
    three = plan_on(2, 2, ["a", "b", "c", "d"])
    kept = buddies(three, {}, able={"b", "c", "d"}, is_shared=False)
    assert kept.keys() == {2}, "stage 0 is held by c alone; stage 1 by b and d"

"""What must hold for every plan."""

from varuna_manager.planner import PlanRequest
from varuna_manager.planner.candidates import shapes
from varuna_manager.planner.memory import MARGIN, kept, peak_bytes
from varuna_manager.planner.pipeline import shares
from varuna_runtime.spec.layout import Plan


def check_invariants(asked: PlanRequest, made: Plan) -> None:
    edges = [stage.first for stage in made.stages] + [made.stages[-1].last]
    assert edges[0] == 0
    assert edges[-1] == len(asked.model.segments)
    assert all(stage.first < stage.last for stage in made.stages)
    assert [stage.last for stage in made.stages] == edges[1:]
    assert len(made.stages) == made.layout.stages
    assert made.stages[-1].recompute is False
    check_placement(asked, made)
    check_memory(asked, made)


def check_placement(asked: PlanRequest, made: Plan) -> None:
    slots = {(node.node, index) for node in asked.nodes for index in range(node.slots)}
    used = [(slot.node, slot.index) for slot in made.placement]
    assert len(used) == made.layout.world_size == len(set(used))
    assert set(used) <= slots
    assert len(made.nodes) <= asked.spec.nodes.max
    assert made.layout.replicas <= made.batch.virtual_replicas


def check_memory(asked: PlanRequest, made: Plan) -> None:
    (shape,) = (s for s in shapes(asked) if s.batch == made.batch)
    num_micro = max(shares(made.batch, made.layout.replicas))
    room = {node.node: node.memory_bytes for node in asked.nodes}
    for rank, slot in enumerate(made.placement):
        s = made.layout.stage_of(rank)
        stage = made.stages[s]
        resident = kept(
            made.batch,
            made.schedule,
            layout=made.layout,
            stages_left=made.layout.stages - s,
            num_micro=num_micro,
            in_flight=stage.in_flight,
        )
        peak = peak_bytes(shape.work, stage.first, stage.last, resident, recompute=stage.recompute)
        assert peak * MARGIN <= room[slot.node]

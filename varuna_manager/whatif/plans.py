"""The real planner, asked once per question of a scenario."""

from dataclasses import fields, replace

from varuna_manager.planner import PlanRequest, plan
from varuna_runtime.spec.layout import Infeasible, Plan, Slot


class Plans:
    """Plans of one job and profile. Equal up to the names of the nodes means equal up to the placement.

    The planner knows a node's name only by its order among the others, so renaming in order is exact.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Plan | Infeasible] = {}

    def plan(self, request: PlanRequest) -> Plan | Infeasible:
        """Return the planner's answer."""
        nodes = sorted(request.nodes, key=lambda node: node.node)
        names = [node.node for node in nodes]
        shape = tuple(replace(node, node=_stand_in(i)) for i, node in enumerate(nodes))
        held = {_stand_in(i): request.held[name] for i, name in enumerate(names) if name in request.held}
        outcome = self._plan(replace(request, nodes=shape, held=held))
        if isinstance(outcome, Infeasible):
            return outcome
        placement = tuple(Slot(node=names[int(s.node)], index=s.index) for s in outcome.placement)
        return replace(outcome, placement=placement)

    def _plan(self, request: PlanRequest) -> Plan | Infeasible:
        apart = {"spec", "held"}
        rest = tuple(getattr(request, field.name) for field in fields(request) if field.name not in apart)
        spec = request.spec  # of which policies change no more than this
        key = (spec.layout, spec.objective, tuple(sorted(request.held.items())), rest)
        if key not in self._known:
            self._known[key] = plan(request).outcome
        return self._known[key]


def _stand_in(index: int) -> str:
    return f"{index:06d}"

"""Bytes that a plan has to move: state is where it was trained, so roles go to the nodes that hold theirs.

Only nodes that are alike to every time and price of a plan change places.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_runtime.spec.layout import Plan, Slot

EXACT_MAX = 100_000
"""Roles squared times nodes up to which the best assignment is found; more take the best pairs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one node does in a plan: its slots, and the segments of the rank on each."""

    node: str
    segments: tuple[tuple[int, ...], ...]


def settled(request: PlanRequest, plan: Plan) -> Plan:
    """Return the plan with nodes that are alike in the places in which fewest bytes move."""
    if not request.held:
        return plan
    sizes = state_bytes(request)
    goes: dict[str, str] = {}
    for roles, nodes in _alike(request, plan):
        goes |= _assigned(roles, nodes, request.held, sizes)
    slots = (Slot(node=goes.get(slot.node, slot.node), index=slot.index) for slot in plan.placement)
    return replace(plan, placement=tuple(slots))


def moved_bytes(request: PlanRequest, plan: Plan) -> int:
    """Return the bytes of state that ranks of the plan do not find on their own node."""
    sizes = state_bytes(request)
    return sum(
        _size(role, sizes) - _kept(role, request.held.get(role.node, ()), sizes) for role in _roles(plan)
    )


def needed_bytes(request: PlanRequest, plan: Plan) -> int:
    """Return the bytes of state that the ranks of the plan load, wherever from."""
    sizes = state_bytes(request)
    return sum(_size(role, sizes) for role in _roles(plan))


def state_bytes(request: PlanRequest) -> tuple[int, ...]:
    """Return the bytes of parameters and optimizer state of each segment."""
    costs = request.profile.by_micro_batch[0].segments
    return tuple(cost.param_bytes + cost.optimizer_bytes for cost in costs)


def _roles(plan: Plan) -> list[Role]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for rank, slot in enumerate(plan.placement):
        stage = plan.stages[plan.layout.stage_of(rank)]
        found.setdefault(slot.node, []).append(tuple(range(stage.first, stage.last)))
    return [Role(node=node, segments=tuple(segments)) for node, segments in found.items()]


def _alike(request: PlanRequest, plan: Plan) -> Iterable[tuple[list[Role], list[str]]]:
    """Yield roles with the nodes that could have each of them, its present one included."""
    nodes = {node.node: node for node in request.nodes}
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name in sorted(nodes):
        groups[_kind(nodes[name])].append(name)
    roles: dict[tuple[object, ...], list[Role]] = defaultdict(list)
    for role in _roles(plan):
        roles[_kind(nodes[role.node])].append(role)
    for kind, here in roles.items():
        yield here, groups[kind]


def _kind(node: PlannableNode) -> tuple[object, ...]:
    return node.slots, node.memory_bytes, node.device_kind, node.domain, node.paid_per_hour, node.speed


def _size(role: Role, sizes: Sequence[int]) -> int:
    return sum(sizes[segment] for segments in role.segments for segment in segments)


def _kept(role: Role, held: Iterable[int], sizes: Sequence[int]) -> int:
    here = set(held)
    return sum(sizes[segment] for segments in role.segments for segment in segments if segment in here)


def _assigned(
    roles: list[Role], nodes: list[str], held: Mapping[str, tuple[int, ...]], sizes: Sequence[int]
) -> dict[str, str]:
    """Return by present node of a role the node that it goes to."""
    own = {role.node for role in roles}
    worth = [name for name in nodes if name in own or held.get(name)]
    if len(roles) ** 2 * len(worth) > EXACT_MAX:
        return _best_first(roles, worth, held, sizes)
    # Where it makes no difference a role stays: such a plan is easier to follow.
    costs = [
        [-(2 * len(roles) * _kept(role, held.get(name, ()), sizes)) - (name == role.node) for name in worth]
        for role in roles
    ]
    return {role.node: worth[column] for role, column in zip(roles, _cheapest(costs), strict=True)}


def _best_first(
    roles: list[Role], nodes: list[str], held: Mapping[str, tuple[int, ...]], sizes: Sequence[int]
) -> dict[str, str]:
    """Assign the pairs that keep most first; roles alike, and nodes alike, are taken together."""
    waiting: dict[tuple[tuple[int, ...], ...], list[Role]] = defaultdict(list)
    free: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for role in roles:
        waiting[role.segments].append(role)
    for name in nodes:
        free[tuple(held.get(name, ()))].append(name)
    pairs = sorted(
        (-_kept(alike[0], what, sizes), segments, what)
        for segments, alike in waiting.items()
        for what in free
    )
    goes: dict[str, str] = {}
    for _, segments, what in pairs:
        here, there = waiting[segments], free[what]
        staying = {role.node for role in here} & set(there)
        for role in sorted(here, key=lambda one: (one.node not in staying, one.node)):
            if not there:
                break
            name = role.node if role.node in staying else next(iter(there))
            if name in staying and name != role.node:
                name = next((one for one in there if one not in staying), name)
            there.remove(name)
            here.remove(role)
            staying.discard(name)
            goes[role.node] = name
    return goes


def _cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return for each row its column, so that the sum is least; no more rows than columns.

    The Hungarian method with potentials, row by row (Kuhn 1955, Jonker and Volgenant 1987).
    """
    num_rows, num_columns = len(costs), len(costs[0]) if costs else 0
    row_price, column_price = [0.0] * (num_rows + 1), [0.0] * (num_columns + 1)
    row_of = [0] * (num_columns + 1)  # 1-based; column 0 is where the new row waits
    for row in range(1, num_rows + 1):
        row_of[0] = row
        least, before, done = [inf] * (num_columns + 1), [0] * (num_columns + 1), [False] * (num_columns + 1)
        column = 0
        while row_of[column]:
            column = _next_column(costs, row_of, row_price, column_price, least, before, done, column)
        while column:
            row_of[column] = row_of[before[column]]
            column = before[column]
    columns = [0] * num_rows
    for column in range(1, num_columns + 1):
        if row_of[column]:
            columns[row_of[column] - 1] = column - 1
    return columns


def _next_column(
    costs: Sequence[Sequence[int]],
    row_of: list[int],
    row_price: list[float],
    column_price: list[float],
    least: list[float],
    before: list[int],
    done: list[bool],
    column: int,
) -> int:
    """Take the cheapest way out of the columns that are done; prices make it free."""
    done[column] = True
    row, num_columns = row_of[column], len(done) - 1
    for other in range(1, num_columns + 1):
        price = costs[row - 1][other - 1] - row_price[row] - column_price[other]
        if not done[other] and price < least[other]:
            least[other], before[other] = price, column
    best = min((c for c in range(1, num_columns + 1) if not done[c]), key=lambda c: least[c])
    step = least[best]
    for other in range(num_columns + 1):
        if done[other]:
            row_price[row_of[other]] += step
            column_price[other] -= step
        else:
            least[other] -= step
    return best

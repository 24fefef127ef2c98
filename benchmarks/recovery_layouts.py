"""R5: a job changes its layout."""

from collections.abc import Iterable

from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.recovery_alone import Alone, durable_since
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_moves import pause_s, warm_s
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import until
from benchmarks.testbed import RankFailed

MIB = 1 << 20
# Memory of a slot, in which the training of half of the model, or of a quarter, has room.
HALF, QUARTER = 130 * MIB, 66 * MIB
NOTICE_S, WARM_WITHIN_S = 300.0, 90.0
BITS = {"micro_batch_size": "1", "virtual_replicas": "8", "nodes": "{min: 1, max: 4}"}
GOAL_S, MARGIN = 1.0, 1.2  # a pause may take the goal, and so many times the bytes that move on the line


class Morphs:
    """What is known of all morphs so far."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.rows: list[Row] = []
        self.pauses: list[float] = []
        self.differing_steps = self.differing_tensors = 0
        self._runs: list[Alone] = []

    def keep(self, pool: Pool, life: int, before: str, how: str) -> str:
        """Add the morph that life `life` began with; return the layout it made."""
        layout, paused_s = pool.status().layout, pause_s(pool.stamps, life)
        with pool.client() as client:
            why = client.plan(pool.job).explanation
        moved = why.moved_bytes if why is not None else None
        name = f"{before} to {layout}, {how}"
        shares = {"MB to move": moved / 1e6} if moved is not None else {}
        self.rows.append(Row(name=name, step_s=Spread.of([paused_s]), shares=shares))
        self.pauses.append(paused_s)
        self._options.say(f"     {name}: {paused_s:.3f} s, {moved} bytes to move")
        return layout

    def finish(self, pool: Pool, life: int) -> None:
        """End the job once a step of its last life is durable; it is compared at the newest such step."""
        until(lambda: durable_since(pool, life), "a durable step", WARM_WITHIN_S)
        pool.cancel()  # before the export: a job that goes on deletes old steps
        self._runs.append(Alone(pool, pool.status().durable_step))

    def compare(self) -> None:
        """Train all jobs of a pool anew without a disturbance, and count what differs."""
        for run in self._runs:
            run.begin()
        for run in self._runs:
            steps, tensors = run.differing()
            self.differing_steps += steps
            self.differing_tensors += tensors
        self._runs.clear()


def r5(options: Options) -> Case:
    """Other stages, other replicas, and both at once."""
    case = Case(
        name="R5",
        title="morphs from layout to layout, with the bits of an undisturbed run",
        settings=f"{SUBJECT}; nodes are drained, and new ones come; all at once: onto four new nodes of "
        "another memory; the pause is the time between the last step of the old layout and "
        "the first of the new one, less a usual step",
    )
    morphs = Morphs(options)
    with Pool(nodes=4) as pool:
        _counts(pool, morphs, "{replicas: 1}")
        _counts(pool, morphs, "{stages: 1}")
        morphs.compare()
    with Pool(nodes=4, memory_bytes=QUARTER) as pool:
        _memories(pool, morphs, (HALF, QUARTER))
        morphs.compare()
    case.rows += morphs.rows
    case.claims += [
        Claim(text="pause of a morph: s", value=Spread.of(morphs.pauses), target=GOAL_S, at_most=True),
        _none("steps with another loss", morphs.differing_steps),
        _none("tensors with other bits", morphs.differing_tensors),
    ]
    case.notes.append(
        f"the bound is {GOAL_S:g} s and {MARGIN:g} x bytes to move / line rate; here the line is "
        "loopback, for which nothing is added. 2x2 and 1x3 are left out: of four and "
        "three nodes the planner makes 4x1 and 3x1 here, whatever their memory"
    )
    return case


def _counts(pool: Pool, morphs: Morphs, pinned: str) -> None:
    """Train on four nodes, on fewer, and on four again, in what the planner makes of them."""
    pool.submit(**BITS, layout=pinned)
    life = pool.settle("")
    full = layout = pool.status().layout
    for _ in range(2):
        pool.drain(pool.members()[0])
        life = pool.settle("", after=life)
        layout = morphs.keep(pool, life, layout, "a node leaves")
    pool.add(2)
    life = pool.settle(full, after=life)
    morphs.keep(pool, life, layout, "nodes join")
    morphs.finish(pool, life)


def _memories(pool: Pool, morphs: Morphs, memories: Iterable[int]) -> None:
    """Train on four nodes, then on four others of each memory."""
    pool.submit(**BITS)
    life = pool.settle("")
    layout = pool.status().layout
    for memory_bytes in memories:
        leaving, known = pool.members(), pool.agents().keys()
        new = pool.add(4, memory_bytes=memory_bytes)
        pool.await_ready(len(known) + len(new))
        for node in leaving:
            pool.notice(node, NOTICE_S)  # from now on others are warmed up for them
        _await_warm(pool, new)
        for node in leaving:
            pool.drain(node)
        life = pool.settle("", after=life)
        layout = morphs.keep(pool, life, layout, "all nodes change")
    morphs.finish(pool, life)


def _await_warm(pool: Pool, nodes: list[str]) -> None:
    def are_warm() -> bool:
        try:
            return all(warm_s(pool, node) > 0 for node in nodes)
        except RankFailed:
            return False

    until(are_warm, f"{', '.join(nodes)} to be warm", WARM_WITHIN_S)


def _none(text: str, count: int) -> Claim:
    return Claim(text=text, value=Spread.of([float(count)]), target=0.0, at_most=True)

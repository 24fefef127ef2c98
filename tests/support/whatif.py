"""Small scenarios to replay: a job of six equal segments on pools given as lines of a recording."""

from tests.support.planning import job, model, profile, segment
from varuna_manager import traces
from varuna_manager.traces import Recording
from varuna_manager.whatif import Machines, Scenario, lent

COSTS = [segment(forward_s=0.05, backward_s=0.1) for _ in range(6)]


def recording(*lines: str, length_s: float | None = None) -> Recording:
    """Return the recording of `seconds,what,node` lines, which lasts `length_s` if that is given."""
    text = "\n".join(f"{int(float(at) * 1000)},{rest}" for at, rest in (line.split(",", 1) for line in lines))
    found = traces.parse(text, source="a test")
    return Recording(changes=found.changes, length_s=length_s or found.length_s)


def joins(count: int, at_s: float = 0.0, first: int = 0) -> tuple[str, ...]:
    """Return the lines of nodes that come together."""
    return tuple(f"{at_s:g},add,n{first + i}" for i in range(count))


def scenario(
    pool: Recording,
    *,
    most: int = 8,
    least: int = 1,
    notice_s: float = 0.0,
    num_steps: int = 10**9,
    stops_when_done: bool = False,
    save_every: int | str = "auto",
) -> Scenario:
    """Return a job of 64 samples a step on a pool of one-slot nodes."""
    spec = job(nodes={"min": least, "max": most}, checkpoint={"interval_steps": save_every})
    made = model(COSTS)
    return Scenario(
        recording=lent(pool, most),
        spec=spec,
        model=type(made)(segments=made.segments, tied=(), num_samples=made.num_samples, num_steps=num_steps),
        profile=profile(COSTS),
        machines=Machines(price=1.0, on_demand_price=3.0, notice_s=notice_s),
        stops_when_done=stops_when_done,
    )

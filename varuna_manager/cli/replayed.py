"""How a replay is shown: a column for each policy, or JSON."""

from collections.abc import Callable
from dataclasses import asdict

from rich.console import Group, RenderableType

from varuna_manager.cli.output import seconds
from varuna_manager.cli.tables import table
from varuna_manager.whatif import Comparison, Result, Scenario
from varuna_manager.whatif.ideal import node_hours

Row = tuple[str, Callable[[Result], str]]


def document(scenario: Scenario, compared: Comparison) -> dict[str, object]:
    """Return the JSON document."""
    recording = scenario.recording
    return {
        "length_s": recording.length_s,
        "num_changes": len(recording.changes),
        "most_nodes": _most(compared),
        "refusal": None if compared.refusal is None else asdict(compared.refusal),
        "policies": [
            {**asdict(result), "spans": [asdict(span) for span in course.spans]}
            for result, course in zip(compared.results, compared.courses, strict=True)
        ],
    }


def view(scenario: Scenario, compared: Comparison, name: str) -> RenderableType:
    """Return the table under a line about the pool."""
    length_s = scenario.recording.length_s
    mean = node_hours(compared.best, length_s) * 3600 / length_s
    pool = (
        f"{name}: {seconds(length_s)}, {mean:.1f} nodes in the mean, at most {_most(compared)}, "
        f"{len(scenario.recording.changes)} changes"
    )
    if (never := compared.refusal) is not None:
        pool += f"\nno plan at any time: {never.reason}; {never.change}"
    rows = [(title, *(show(result) for result in compared.results)) for title, show in _rows(scenario)]
    shown = [row for row in rows if any(row[1:])]
    return Group(pool, "", table(("", *(f">{result.policy}" for result in compared.results)), shown))


def _rows(scenario: Scenario) -> tuple[Row, ...]:
    num_steps = scenario.model.num_steps
    return (
        ("goodput (share of the ideal)", lambda r: f"{r.goodput:.2%}"),
        ("  missing: moving", lambda r: f"{r.moving_share:.2%}"),
        ("  missing: parked", lambda r: f"{r.parked_share:.2%}"),
        ("  missing: lost work", lambda r: f"{r.lost_share:.2%}"),
        ("  missing: slower plans", lambda r: f"{r.slower_share:.2%}"),
        ("samples", lambda r: f"{r.samples:,}"),
        ("samples/s", lambda r: f"{r.samples_per_s:,.1f}"),
        ("morphs", lambda r: str(r.num_morphs)),
        ("time moving", lambda r: seconds(r.moving_s)),
        ("time parked", lambda r: seconds(r.parked_s)),
        ("lost steps", lambda r: str(r.lost_steps)),
        ("lost work", lambda r: seconds(r.lost_s)),
        ("node hours", lambda r: f"{r.node_hours:,.1f}"),
        ("cost", lambda r: _dollars(r.cost)),
        ("on-demand cost", lambda r: _dollars(r.on_demand_cost)),
        (f"{num_steps} steps done after", lambda r: _after(r.finished_s)),
    )


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f"${amount:,.2f}"


def _after(finished_s: float | None) -> str:
    return "-" if finished_s is None else seconds(finished_s)


def _most(compared: Comparison) -> int:
    return max((best.num_nodes for best in compared.best), default=0)

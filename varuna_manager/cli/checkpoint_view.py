"""How the steps of a store are shown."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from varuna_manager.cli.output import day, seconds
from varuna_manager.cli.tables import Table, table
from varuna_manager.core.words import counted
from varuna_runtime.checkpoint.survey import StepFound
from varuna_runtime.spec.amounts import size

_FOLDER = re.compile(r"^jobs/[^/]+/checkpoints/[0-9]+/")


def steps(found: Sequence[StepFound], now_s: float) -> Table:
    """Return the table of `checkpoint ls`."""
    columns = (">STEP", "STATE", ">GEN", ">SIZE", ">OBJECTS", "WRITTEN", ">AGE", "WHY")
    return table(columns, [_row(each, now_s) for each in found])


def summary(found: Sequence[StepFound], now_s: float) -> str:
    """Return one line on what a job would go on from."""
    newest = next((each for each in found if each.is_complete), None)
    if newest is None:
        return "no step can be loaded"
    return (
        f"a job would go on from step {newest.step}, of {seconds(max(now_s - newest.written_at_s, 0.0))} ago"
    )


def pruned(keys: Iterable[str], sizes: Mapping[str, int]) -> list[str]:
    """Return a line for each step that loses objects."""
    counts: Counter[int] = Counter()
    freed: Counter[int] = Counter()
    for key in keys:
        step = int(key.split("/")[3])
        counts[step] += 1
        freed[step] += sizes.get(key, 0)
    return [f"step {step}: {counted(counts[step], 'object')}, {size(freed[step])}" for step in sorted(counts)]


def _row(each: StepFound, now_s: float) -> tuple[object, ...]:
    state = "complete" if each.is_complete else "refused" if each.is_committed else "unfinished"
    why = within_step(each.refusal) or ("" if each.is_committed else "a save that failed or is under way")
    generation = "" if each.generation is None else each.generation
    age = seconds(max(now_s - each.written_at_s, 0.0)) if each.written_at_s else ""
    return (
        each.step,
        state,
        generation,
        size(each.num_bytes),
        each.num_objects,
        day(each.written_at_s),
        age,
        why,
    )


def within_step(reason: str) -> str:
    """Return a refusal with the object's key from the step's folder on: the rest is in the row, and long."""
    return _FOLDER.sub("", reason)

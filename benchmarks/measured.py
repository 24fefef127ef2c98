"""Steps that others measured on real clusters: three rows calibrate, a cost model predicts the rest.

Which three is the rule of `planner.calibrate.corners`, which looks at layouts and at no time.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Case, Claim, Spread
from benchmarks.ranking import Predicted, kendall_tau, mean_error, median_error, regrets
from varuna_manager.planner.calibrate import Costs, MeasuredStep, Training, calibrated, corners, predicted_s
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Layout

FEWEST_ROWS = 4  # three calibrate, at least one is predicted
ABSURD = 20.0  # times the median of seconds x nodes, or its inverse, beyond which a row is no measurement
DISAGREES = 0.05  # of a row's time and its own samples per second
SLOWER = 1.1  # than a layout of fewer nodes and the same D or P: then a row is called unsteady
MEDIAN_ERROR, TAU, REGRET = 0.05, 0.9, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """The rows of one model that can be used; `refused` says why others cannot."""

    name: str
    source: str
    training: Training
    rows: tuple[MeasuredStep, ...]
    refused: tuple[str, ...]


def read(text: str, name: str) -> MeasuredModel:
    """Return the model of one JSON text; raises InvalidInput, which names `name`, where it is of no use."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as err:
        raise InvalidInput(f"{name}: no JSON: {err}") from err
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise InvalidInput(f"{name}: seen no list `rows`, wanted rows of D, P and iter_ms or samples_per_s")
    training = Training(
        batch_size=_count(content, "global_batch_size", name),
        micro_batch_size=_count(content, "microbatch_size", name),
        num_segments=_count(content, "num_segments", name) if "num_segments" in content else None,
    )
    rows, refused = _usable(content["rows"], training)
    if len(rows) < FEWEST_ROWS:
        why = f"; left out: {'; '.join(refused)}" if refused else ""
        raise InvalidInput(
            f"{name}: seen {len(rows)} usable rows, wanted at least {FEWEST_ROWS}: three calibrate{why}"
        )
    return MeasuredModel(
        name=str(content.get("model", name)),
        source=str(content.get("source", "not told")),
        training=training,
        rows=tuple(rows),
        refused=tuple(refused),
    )


def case(model: MeasuredModel) -> Case:
    """Return how well three rows of a model predict the others."""
    three = corners(model.rows)
    costs = calibrated(model.training, three)
    every = predictions(model, costs)
    given = {row.layout for row in three}
    rest = [row for row in every if row.layout not in given]
    found = Case(
        name=model.name,
        title=f"{len(rest)} measured layouts from {len(three)}",
        settings=f"Source: {model.source}. Calibrated by D x P = {_layouts(given)}.",
    )
    found.claims = [
        _at_most("median error", median_error(rest), MEDIAN_ERROR),
        Claim(text="Kendall tau", value=Spread.of([kendall_tau(rest)]), target=TAU),
        _at_most("largest regret over node counts", max(r.share for r in regrets(every)), REGRET),
    ]
    found.notes = [_told(costs), *_about_regret(every), *_about_noise(model, every, given), *model.refused]
    return found


def cases(folder: Path, say: Callable[[str], None]) -> list[Case]:
    """Return a case for every JSON file of a folder; one that is of no use fails and says why."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise InvalidInput(f"{folder}: seen no *.json, wanted measured layouts")
    found = []
    for path in paths:
        say(f" {path.name}")
        try:
            found.append(case(read(path.read_text(errors="replace"), path.name)))
        except InvalidInput as err:
            found.append(Case(name=path.stem, title="refused", settings=str(err), has_failed=True))
    return found


def predictions(model: MeasuredModel, costs: Costs) -> list[Predicted]:
    """Return every row with what the simulator says."""
    return [
        Predicted(
            layout=row.layout,
            predicted_s=predicted_s(model.training, costs, row.layout),
            measured_s=row.step_s,
        )
        for row in model.rows
    ]


def is_steady(row: MeasuredStep, rows: Sequence[MeasuredStep]) -> bool:
    """Return False where more stages, or more replicas, took much longer than fewer did."""
    return not any(
        other.step_s * SLOWER < row.step_s and _is_part_of(other.layout, row.layout) for other in rows
    )


def _is_part_of(small: Layout, large: Layout) -> bool:
    if small.stages == large.stages:
        return small.replicas < large.replicas
    return small.replicas == large.replicas and small.stages < large.stages


def _about_regret(every: Sequence[Predicted]) -> list[str]:
    worse = [one for one in regrets(every) if one.share > REGRET]
    return [
        f"{one.num_nodes} nodes: chose {_name(one.chosen)}, best {_name(one.best)}, regret {one.share:.3f}"
        for one in worse
    ]


def _about_noise(model: MeasuredModel, every: Sequence[Predicted], given: set[Layout]) -> list[str]:
    """Say what is due to the rows: without those that contradict others, and for the best fit there is."""
    steady = {row.layout for row in model.rows if is_steady(row, model.rows)}
    kept = [row for row in every if row.layout in steady]
    unsteady = {row.layout for row in every} - steady
    best = predictions(model, calibrated(model.training, model.rows))
    notes = [f"fitted to all rows instead, the same model reaches {_scores(best, best)}"]
    if unsteady:
        notes += [
            f"unsteady, as more nodes made them more than {SLOWER - 1:.0%} slower: {_layouts(unsteady)}",
            f"the steady rows alone: {_scores([row for row in kept if row.layout not in given], kept)}",
        ]
    return notes


def _scores(rest: Sequence[Predicted], every: Sequence[Predicted]) -> str:
    most = max(one.share for one in regrets(every))
    return (
        f"median error {median_error(rest):.3f}, mean {mean_error(rest):.3f}, tau {kendall_tau(rest):.3f}, "
        f"regret {most:.3f}"
    )


def _told(costs: Costs) -> str:
    return (
        f"costs: compute {1000 * costs.compute_s:.1f} ms a micro-batch, "
        f"exchange {1000 * costs.exchange_s:.1f} ms a micro-batch and stage, "
        f"reduction {costs.reduction_s:.2f} s a model, fixed {costs.fixed_s:.2f} s"
    )


def _at_most(text: str, value: float, target: float) -> Claim:
    return Claim(text=text, value=Spread.of([value]), target=target, at_most=True)


def _name(layout: Layout) -> str:
    return f"{layout.replicas}x{layout.stages}"


def _layouts(layouts: set[Layout]) -> str:
    return ", ".join(_name(one) for one in sorted(layouts, key=lambda one: (one.replicas, one.stages)))


def _usable(found: Sequence[Any], training: Training) -> tuple[list[MeasuredStep], list[str]]:
    """Return the rows that are measurements and, in words, those that are not."""
    rows: dict[Layout, MeasuredStep] = {}
    refused = []
    for number, row in enumerate(found, start=1):
        try:
            step = _step(row, training)
            if step.layout in rows:
                raise InvalidInput(f"{_name(step.layout)} is there twice, the first one counts")
            rows[step.layout] = step
        except InvalidInput as err:
            refused.append(f"row {number} left out: {err}")
    work = {layout: step.step_s * layout.world_size for layout, step in rows.items()}
    usual = median(work.values()) if work else 0.0
    for layout, seconds in work.items():
        if not usual / ABSURD <= seconds <= usual * ABSURD:
            del rows[layout]
            refused.append(
                f"{_name(layout)} left out: {seconds:g} s x nodes, {seconds / usual:.3g} times the median"
            )
    return list(rows.values()), refused


def _step(row: Any, training: Training) -> MeasuredStep:
    if not isinstance(row, dict):
        raise InvalidInput(f"seen {row!r}, wanted D, P and iter_ms or samples_per_s")
    layout = Layout(stages=_count(row, "P", "layout"), replicas=_count(row, "D", "layout"))
    if layout.replicas * training.micro_batch_size > training.batch_size:
        raise InvalidInput(f"{_name(layout)} has replicas without a micro-batch")
    num_segments = training.num_segments
    if num_segments is not None and layout.stages > num_segments:
        raise InvalidInput(f"{_name(layout)} has more stages than the {num_segments} segments")
    return MeasuredStep(layout=layout, step_s=_step_s(row, _name(layout), training.batch_size))


def _step_s(row: Mapping[str, Any], name: str, batch_size: int) -> float:
    """Return the time of a row, which may be given as a rate."""
    times = []
    if row.get("iter_ms") is not None:
        times.append(_positive(row["iter_ms"], f"{name}: iter_ms") / 1000)
    if row.get("samples_per_s") is not None:
        times.append(batch_size / _positive(row["samples_per_s"], f"{name}: samples_per_s"))
    if not times:
        raise InvalidInput(f"{name}: seen neither iter_ms nor samples_per_s")
    if max(times) > min(times) * (1 + DISAGREES):
        raise InvalidInput(f"{name}: iter_ms says {times[0]:.3f} s, samples_per_s says {times[1]:.3f} s")
    return times[0]


def _positive(value: Any, what: str) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(f"{what}: seen {value!r}, wanted a number above zero")
    return number


def _count(content: Mapping[str, Any], key: str, where: str) -> int:
    """Return a whole number; some writers of JSON make 4.0 of 4."""
    number = _number(content.get(key))
    if not (number.is_integer() and number >= 1):
        raise InvalidInput(f"{where}: {key}: seen {content.get(key)!r}, wanted a whole number above zero")
    return int(number)


def _number(value: Any) -> float:
    """Return not-a-number for what is none, or none that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan

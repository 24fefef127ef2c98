"""What must hold of the history of a job, whatever was done to it. Pure: it judges records.

Each check returns what is wrong, in words; nothing is right unless all return nothing.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from varuna_runtime.spec import batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the job is, and what an undisturbed run on one process gives."""

    num_steps: int
    batch_size: int
    micro_batch_size: int
    num_samples: int
    seed: int
    weights_sha256: str
    losses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A committed step as the manager has it."""

    step: int
    generation: int
    loss_hex: str
    at_s: float
    step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A micro-batch whose loss a process computed; in the order of each process."""

    generation: int
    rank: int
    pid: int
    at_s: float
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """What the manager said of the job at one moment."""

    at_s: float
    state: str
    generation: int
    step: int
    durable_step: int
    recoverable_step: int | None = None
    replayed_steps: int = 0
    weights_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that was seen of a job, in the order in which it was seen."""

    told: tuple[Told, ...]
    lines: tuple[Line, ...]
    glimpses: tuple[Glimpse, ...]
    trained: frozenset[int]  # generations that were started to train
    managers: tuple[float, ...] = ()  # when each manager began
    thawed: frozenset[int] = frozenset()  # pids that were frozen for a while


def faults(training: Training, history: History) -> list[str]:
    """Return all that is wrong."""
    checks = (ending, losses, order_of_generations, progress, durability, samples, one_at_a_time)
    return [fault for check in checks for fault in check(training, history)]


def ending(training: Training, history: History) -> Iterator[str]:
    """The job succeeds with the bits of the undisturbed run."""
    last = history.glimpses[-1]
    if last.state != "SUCCEEDED":
        yield f"ended as {last.state} at step {last.step}"
    elif last.weights_sha256 != training.weights_sha256:
        yield f"weights: seen {last.weights_sha256[:12]}, wanted {training.weights_sha256[:12]}"


def losses(training: Training, history: History) -> Iterator[str]:
    """Each step is told, once a generation, and always with the bits of the undisturbed run."""
    by_step: defaultdict[int, list[Told]] = defaultdict(list)
    for told in history.told:
        by_step[told.step].append(told)
    missing = sorted(set(range(training.num_steps)) - set(by_step))
    if missing:
        yield f"steps never told: {missing[:10]}"
    for step, records in sorted(by_step.items()):
        if step not in range(training.num_steps):
            yield f"step {step} is beyond the end"
        elif wrong := {r.loss_hex for r in records} - {training.losses[step]}:
            yield f"loss of step {step}: seen {sorted(wrong)}, wanted {training.losses[step]}"
        again = [g for g, count in Counter(r.generation for r in records).items() if count > 1]
        if again:
            yield f"step {step} was told more than once by generations {again}"


def order_of_generations(training: Training, history: History) -> Iterator[str]:
    """Steps of a generation follow each other without a gap."""
    last: dict[int, int] = {}
    for told in sorted(history.told, key=lambda t: (t.generation, t.step)):
        before = last.get(told.generation)
        if before is not None and told.step != before + 1:
            yield f"generation {told.generation} has step {told.step} after {before}"
        last[told.generation] = told.step


def progress(training: Training, history: History) -> Iterator[str]:
    """Generation and durable step never fall; committed once a generation, never below durable.

    The manager says the old step until it hears the first one of the new generation; the next manager
    has to hear anew what was committed.
    """
    fell: set[tuple[int, int]] = set()
    for before, after in itertools.pairwise(history.glimpses):
        if after.generation < before.generation:
            yield f"generation fell from {before.generation} to {after.generation}"
        if after.durable_step < before.durable_step:
            yield f"durable step fell from {before.durable_step} to {after.durable_step}"
        if after.step < before.step:
            place = after.generation, sum(began_s <= after.at_s for began_s in history.managers)
            if place in fell:
                steps = f"from {before.step} to {after.step}"
                yield f"committed fell again, {steps} in generation {after.generation}"
            fell.add(place)
        if after.step < after.durable_step:
            yield f"committed step {after.step} is below the durable step {after.durable_step}"
        if after.recoverable_step is not None and not (
            after.durable_step <= after.recoverable_step <= max(after.step, after.durable_step)
        ):
            yield (
                f"recoverable step {after.recoverable_step} is not from the durable step "
                f"{after.durable_step} to the committed step {after.step}"
            )
    again = len(history.told) - len({told.step for told in history.told})
    if history.glimpses[-1].replayed_steps != again:
        yield f"replayed steps: said {history.glimpses[-1].replayed_steps}, told {again}"


def durability(training: Training, history: History) -> Iterator[str]:
    """No generation computes a step that was durable before it was started."""
    places = micro_batches(training)
    firsts: dict[int, int] = {}
    for line in history.lines:
        if line.generation in history.trained and line.samples in places:
            step = places[line.samples][0]
            firsts[line.generation] = min(step, firsts.get(line.generation, step))
    for generation, first in firsts.items():
        held = max((g.durable_step for g in history.glimpses if g.generation < generation), default=0)
        if first < held:
            yield f"generation {generation} began at {first}, although {held} was durable before it"


def samples(training: Training, history: History) -> Iterator[str]:
    """Every told step used each of its micro-batches once; so every epoch uses each sample once."""
    places = micro_batches(training)
    seen: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for line in history.lines:
        if line.generation not in history.trained:
            continue
        place = places.get(line.samples)
        if place is None:
            yield f"generation {line.generation}: no micro-batch has the samples {line.samples}"
            continue
        seen[line.generation, place[0]][place[1]] += 1
    for (generation, step), counts in sorted(seen.items()):
        if twice := [index for index, count in counts.items() if count > 1]:
            yield f"generation {generation} did micro-batches {twice} of step {step} more than once"
    num_micro = batches.num_micro_batches(training.batch_size, training.micro_batch_size)
    whole = {key for key, counts in seen.items() if len(counts) == num_micro}
    done = {step for _, step in whole}
    for told in history.told:
        # A generation tells also what it found in its state, of generations that could not tell it.
        if (told.generation, told.step) not in whole and told.step not in done:
            yield f"step {told.step} was told by generation {told.generation}, but not all its samples used"


def one_at_a_time(training: Training, history: History) -> Iterator[str]:
    """No step of a generation is computed once a later one computes; one that thawed ends at once."""
    began: dict[int, float] = {}
    trained = [line for line in history.lines if line.generation in history.trained]
    for line in trained:
        began[line.generation] = min(line.at_s, began.get(line.generation, line.at_s))
    places = micro_batches(training)
    for line in trained:
        later = min((at for g, at in began.items() if g > line.generation), default=float("inf"))
        if line.at_s > later and line.pid not in history.thawed:
            step = places.get(line.samples, (-1, 0))[0]
            yield (
                f"generation {line.generation} (rank {line.rank}, pid {line.pid}) worked on step {step} "
                f"{line.at_s - later:.3f} s after a later generation had begun"
            )


def micro_batches(training: Training) -> Mapping[tuple[int, ...], tuple[int, int]]:
    """Return step and index of each micro-batch by its samples, which no two share."""
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for step in range(training.num_steps):
        rows = batches.step_rows(step, training.batch_size, None)
        refs = batches.sample_refs(rows, training.num_samples, training.seed, shuffle=True)
        drawn: Sequence[int] = [ref.sample for ref in refs]
        for index in range(batches.num_micro_batches(training.batch_size, training.micro_batch_size)):
            within = batches.micro_batch_rows(training.batch_size, training.micro_batch_size, index)
            key = tuple(drawn[row] for row in within)
            assert key not in places, f"two micro-batches have the samples {key}"
            places[key] = (step, index)
    return places

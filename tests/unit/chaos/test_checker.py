"""The campaign's checker finds what is wrong in histories that are made up."""

from dataclasses import replace

import pytest

from tests.support.chaos.checker import Glimpse, History, Line, Told, Training, faults, micro_batches

TRAINING = Training(
    num_steps=6,
    batch_size=10,
    micro_batch_size=4,
    num_samples=97,
    seed=7,
    weights_sha256="right",
    losses=("a", "b", "c", "d", "e", "f"),
)
BY_PLACE = {place: samples for samples, place in micro_batches(TRAINING).items()}


def told(step: int, generation: int, loss: str | None = None) -> Told:
    loss_hex = TRAINING.losses[step] if loss is None else loss
    return Told(step=step, generation=generation, loss_hex=loss_hex, at_s=10.0 * generation + step)


def lines(step: int, generation: int, pid: int = 0, at_s: float | None = None) -> list[Line]:
    at_s = 10.0 * generation + step if at_s is None else at_s
    return [
        Line(generation=generation, rank=0, pid=pid or generation, at_s=at_s, samples=BY_PLACE[step, index])
        for index in range(3)
    ]


def glimpse(generation: int, step: int, durable: int, state: str = "RUNNING") -> Glimpse:
    return Glimpse(at_s=0.0, state=state, generation=generation, step=step, durable_step=durable)


def good() -> History:
    """Generation 2 does steps 0 to 3 and is lost, 3 goes on from the durable step 2."""
    steps = [(0, 2), (1, 2), (2, 2), (3, 2), (2, 3), (3, 3), (4, 3), (5, 3)]
    end = replace(glimpse(3, 6, 6, "SUCCEEDED"), replayed_steps=2, weights_sha256="right")
    return History(
        told=tuple(told(step, generation) for step, generation in steps),
        lines=tuple(line for step, generation in steps for line in lines(step, generation)),
        glimpses=(glimpse(2, 1, 0), glimpse(2, 4, 2), glimpse(3, 2, 2, "STARTING"), glimpse(3, 5, 4), end),
        trained=frozenset({2, 3}),
    )


def with_end(history: History, **changes: object) -> History:
    last = replace(history.glimpses[-1], **changes)  # type: ignore[arg-type]
    return replace(history, glimpses=(*history.glimpses[:-1], last))


def only_fault(history: History) -> str:
    (found,) = faults(TRAINING, history)
    return found


def test_a_history_with_a_loss_and_a_replay_is_right() -> None:
    assert faults(TRAINING, good()) == []


def test_a_generation_that_measures_may_use_any_samples() -> None:
    odd = Line(generation=1, rank=0, pid=1, at_s=99.0, samples=(1, 1, 1))
    assert faults(TRAINING, replace(good(), lines=(odd, *good().lines))) == []


def test_steps_that_only_a_later_generation_could_tell_are_right() -> None:
    does, tells = {0: 2, 1: 2, 2: 2, 3: 2, 4: 3, 5: 3}, {0: 2, 1: 2, 2: 3, 3: 3, 4: 3, 5: 3}
    end = replace(glimpse(3, 6, 6, "SUCCEEDED"), weights_sha256="right")
    history = History(
        told=tuple(told(step, generation) for step, generation in tells.items()),
        lines=tuple(line for step, generation in does.items() for line in lines(step, generation)),
        glimpses=(glimpse(2, 2, 0), glimpse(2, 4, 4), end),
        trained=frozenset({2, 3}),
    )
    assert faults(TRAINING, history) == []


def test_other_weights_are_found() -> None:
    assert "weights: seen wrong" in only_fault(with_end(good(), weights_sha256="wrong"))


def test_a_job_that_does_not_end_well_is_found() -> None:
    assert "ended as FAILED" in only_fault(with_end(good(), state="FAILED"))


def test_a_loss_of_other_bits_is_found_also_in_a_replay() -> None:
    history = good()
    wrong = tuple(told(3, 3, "x") if (t.step, t.generation) == (3, 3) else t for t in history.told)
    assert "loss of step 3: seen ['x']" in only_fault(replace(history, told=wrong))


def test_a_step_that_nobody_told_is_found() -> None:
    history = replace(good(), told=good().told[:-1])
    assert "steps never told: [5]" in only_fault(history)


def test_a_step_told_twice_by_one_generation_is_found() -> None:
    history = replace(good(), told=(*good().told, told(5, 3)))
    found = faults(TRAINING, with_end(history, replayed_steps=3))
    assert any("step 5 was told more than once by generations [3]" in fault for fault in found)


def test_a_step_beyond_the_end_is_found() -> None:
    history = replace(good(), told=(*good().told, replace(told(5, 3), step=6)))
    assert any("step 6 is beyond the end" in fault for fault in faults(TRAINING, history))


def test_a_gap_within_a_generation_is_found() -> None:
    history = good()
    gap = tuple(t for t in history.told if (t.step, t.generation) != (1, 2))
    gap = (told(1, 1), *gap)
    assert "generation 2 has step 2 after 0" in only_fault(replace(history, told=gap))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (glimpse(1, 5, 4), "generation fell from 3 to 1"),
        (glimpse(3, 5, 3), "durable step fell from 4 to 3"),
        (glimpse(3, 4, 4), "committed fell again, from 5 to 4 in generation 3"),
        (glimpse(3, 5, 6), "committed step 5 is below the durable step 6"),
        (replace(glimpse(3, 5, 4), recoverable_step=3), "recoverable step 3 is not from the durable step 4"),
        (replace(glimpse(3, 5, 4), recoverable_step=6), "recoverable step 6 is not from the durable step 4"),
    ],
)
def test_progress_that_falls_is_found(bad: Glimpse, words: str) -> None:
    history = good()
    glimpses = (*history.glimpses[:-1], bad, history.glimpses[-1])
    assert any(words in fault for fault in faults(TRAINING, replace(history, glimpses=glimpses)))


def test_committed_may_fall_once_more_under_another_manager() -> None:
    history = good()
    later = replace(glimpse(3, 4, 4), at_s=2.0)
    glimpses = (*history.glimpses[:-1], later, history.glimpses[-1])
    assert faults(TRAINING, replace(history, glimpses=glimpses, managers=(-1.0, 1.0))) == []
    assert faults(TRAINING, replace(history, glimpses=glimpses, managers=(-1.0,))) != []


def test_a_generation_that_begins_below_what_was_durable_is_found() -> None:
    history = good()
    glimpses = (glimpse(2, 4, 3), glimpse(3, 3, 3, "STARTING"), *history.glimpses[3:])
    found = faults(TRAINING, replace(history, glimpses=glimpses))
    assert any("generation 3 began at 2, although 3 was durable" in fault for fault in found)


def test_replays_that_are_not_said_are_found() -> None:
    assert "replayed steps: said 0, told 2" in only_fault(with_end(good(), replayed_steps=0))


def test_a_sample_that_was_left_out_is_found() -> None:
    kept = tuple(line for line in good().lines if line.samples != BY_PLACE[4, 1])
    assert "step 4 was told by generation 3, but not all its samples" in only_fault(
        replace(good(), lines=kept)
    )


def test_a_sample_that_was_used_twice_is_found() -> None:
    history = replace(good(), lines=(*good().lines, lines(5, 3)[1]))
    assert "generation 3 did micro-batches [1] of step 5 more than once" in only_fault(history)


def test_samples_that_no_step_has_are_found() -> None:
    odd = replace(good().lines[-1], samples=(1, 2, 3, 4))
    assert "no micro-batch has the samples (1, 2, 3, 4)" in only_fault(
        replace(good(), lines=(*good().lines, odd))
    )


def test_two_generations_at_once_are_found() -> None:
    late = lines(4, 2, pid=5, at_s=34.5)[0]
    found = only_fault(replace(good(), lines=(*good().lines, late)))
    assert "generation 2 (rank 0, pid 5) worked on step 4" in found


def test_a_process_that_thawed_is_no_second_generation() -> None:
    late = lines(4, 2, pid=5, at_s=34.5)[0]
    history = replace(good(), lines=(*good().lines, late), thawed=frozenset({5}))
    assert faults(TRAINING, history) == []

"""Programs and the ready-rule on small integers; no engine, no simulator."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.programs import most_in_flight, of_list, program
from varuna_runtime.spec.schedule import Op, OpKind, Program, State, next_op
from varuna_runtime.spec.schedule_check import Side, Transfer, refuse_deadlock, validate

KINDS = list(ScheduleKind)


def programs(
    kind: ScheduleKind, stages: int, micro: int, *, recompute: bool = False, in_flight: int = 0
) -> list[Program]:
    return [
        program(kind, stage=s, num_stages=stages, num_micro=micro, recompute=recompute, in_flight=in_flight)
        for s in range(stages)
    ]


def ops(text: str) -> list[Op]:
    return [Op(OpKind(word[0]), int(word[1:])) for word in text.split()]


def listed(*texts: str) -> list[Program]:
    return [of_list(ops(text), stage=s, num_stages=len(texts)) for s, text in enumerate(texts)]


def order(todo: Program) -> list[str]:
    """What a stage runs when every message is there from the start."""
    state = State(activations=todo.num_micro, gradients=todo.num_micro)
    found = []
    while (op := next_op(todo, state)) is not None:
        state.finish(todo, op)
        found.append(str(op))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", range(1, 6))
def test_every_program_is_complete_and_free_of_deadlock(kind: ScheduleKind, stages: int) -> None:
    """Also with fewer micro-batches than stages, as many, and one (pytorch/torchtitan#775)."""
    for micro in range(1, 7):
        for recompute in (False, True):
            for in_flight in (0, 1, 2):
                validate(programs(kind, stages, micro, recompute=recompute, in_flight=in_flight))


def test_the_textbook_orders() -> None:
    first, last = programs(ScheduleKind.ONE_F_ONE_B, 2, 3)
    assert order(first) == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert order(last) == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert order(programs(ScheduleKind.EAGER, 2, 4)[0]) == ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]
    assert order(programs(ScheduleKind.GPIPE, 2, 2, recompute=True)[0]) == [
        "F0",
        "F1",
        "R0",
        "B0",
        "R1",
        "B1",
    ]


def test_the_list_of_varuna_holds_three_times_the_stages_behind() -> None:
    # As many as its own generator gives for P=8, M=64.
    held = []
    for todo in programs(ScheduleKind.VARUNA, 8, 64, recompute=True):
        assert todo.listed is not None
        held.append(max(forwards - op.micro for forwards, op in todo.listed))
    assert held == [21, 18, 15, 12, 9, 6, 3, 1]


def test_a_forward_may_pass_a_recompute_that_waits_for_its_gradient() -> None:
    todo = programs(ScheduleKind.VARUNA, 3, 20, recompute=True)[1]
    assert todo.listed is not None
    forwards, head = todo.listed[0]
    waiting = State(activations=forwards + 1, forwards=forwards)
    assert (head, next_op(todo, waiting)) == (Op(OpKind.RECOMPUTE, 0), Op(OpKind.FORWARD, forwards))
    waiting.activations = forwards
    assert next_op(todo, waiting) is None  # one may still come, and until the backward none would run
    waiting.gradients = 1
    assert next_op(todo, waiting) == head


def test_no_forward_of_varuna_runs_between_a_recompute_and_its_backward() -> None:
    todo = programs(ScheduleKind.VARUNA, 3, 20, recompute=True)[1]
    assert todo.listed is not None
    forwards = todo.listed[1][0]
    held = State(activations=forwards + 3, forwards=forwards, recomputes=1)
    assert next_op(todo, held) is None
    held.gradients = 1
    assert next_op(todo, held) == Op(OpKind.BACKWARD, 0)


def test_a_backward_is_preferred_and_a_recompute_ahead_of_its_gradient_is_for_idle_time() -> None:
    todo = programs(ScheduleKind.WORK_CONSERVING, 2, 9, recompute=True, in_flight=3)[0]
    assert next_op(todo, State(activations=9, forwards=1)) == Op(OpKind.FORWARD, 1)
    assert next_op(todo, State(activations=9, forwards=3)) == Op(OpKind.RECOMPUTE, 0)
    assert next_op(todo, State(activations=9, forwards=3, recomputes=1)) is None
    assert next_op(todo, State(activations=9, forwards=2, recomputes=1)) == Op(OpKind.FORWARD, 2)
    assert next_op(todo, State(activations=9, forwards=2, gradients=1)) == Op(OpKind.RECOMPUTE, 0)
    assert next_op(todo, State(activations=9, forwards=2, gradients=1, recomputes=1)) == Op(
        OpKind.BACKWARD, 0
    )


def test_a_weight_pass_is_done_when_idle_or_when_too_many_are_owed() -> None:
    todo = programs(ScheduleKind.ZERO_BUBBLE, 1, 9)[0]
    assert todo.pending == 3
    assert next_op(todo, State(activations=9, forwards=1, gradients=1)) == Op(OpKind.INPUT, 0)
    one_owed = State(activations=9, forwards=1, gradients=1, backwards=1)
    assert next_op(todo, one_owed) == Op(OpKind.FORWARD, 1)
    one_owed.activations = 1
    assert next_op(todo, one_owed) == Op(OpKind.WEIGHT, 0)
    all_owed = State(activations=9, forwards=4, gradients=4, backwards=3)
    assert next_op(todo, all_owed) == Op(OpKind.WEIGHT, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cap_holds_and_raises_what_a_program_has_by_nature_of_eager_1f1b_alone(kind: ScheduleKind) -> None:
    natural = most_in_flight(kind, stages_left=4, num_micro=9)
    assert programs(kind, 4, 9, in_flight=2)[0].in_flight == 2
    assert programs(kind, 4, 9, in_flight=99)[0].in_flight == (9 if kind is ScheduleKind.EAGER else natural)


def test_eager_1f1b_runs_with_more_in_flight_as_long_as_no_stage_has_more_than_the_one_before() -> None:
    validate(capped(ScheduleKind.EAGER, [5, 4, 4, 2]))
    with pytest.raises(InvalidInput, match="dead-locks"):
        validate(capped(ScheduleKind.EAGER, [3, 4, 4, 2]))


def capped(kind: ScheduleKind, caps: Sequence[int]) -> list[Program]:
    return [
        program(kind, stage=s, num_stages=len(caps), num_micro=5, recompute=False, in_flight=cap)
        for s, cap in enumerate(caps)
    ]


def test_a_rule_takes_any_cap_at_any_stage_and_a_list_none_below_those_behind() -> None:
    for kind in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE):
        validate(capped(kind, [1, 4, 2, 3]))
    validate(capped(ScheduleKind.GPIPE, [4, 3, 2, 1]))
    with pytest.raises(InvalidInput, match=r"dead-locks, waiting for .* of stage 0"):
        validate(capped(ScheduleKind.GPIPE, [1, 4, 2, 3]))


def transfers(rank: int, words: Sequence[str]) -> list[Transfer]:
    """`SEND_F2` of stage 0 goes to stage 1, and so on."""
    found = []
    for word in words:
        side, name = word.split("_")
        is_down = name[0] == "F"
        source, target = (0, 1) if is_down else (1, 0)
        assert (source if side == "SEND" else target) == rank
        found.append(Transfer(Side(side), source, target, ops(name)[0]))
    return found


def test_sends_that_wait_for_each_other_are_refused() -> None:
    """Without buffers, each blocks before it gets to the other's receive (pytorch/pytorch#172668)."""
    first, last = transfers(0, ["SEND_F2", "RECV_B0"]), transfers(1, ["SEND_B0", "RECV_F2"])
    with pytest.raises(InvalidInput, match="dead-locks at SEND_B0 1>0, SEND_F2 0>1"):
        refuse_deadlock([first, last])
    refuse_deadlock([first, transfers(1, ["RECV_F2", "SEND_B0"])])


def test_ends_of_a_channel_in_different_orders_are_refused() -> None:
    with pytest.raises(InvalidInput, match="dead-locks"):
        refuse_deadlock([transfers(0, ["SEND_F0", "SEND_F1"]), transfers(1, ["RECV_F1", "RECV_F0"])])


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (("F0 B0 F1 B1", "F0 F1 B0 B1"), "dead-locks, waiting for"),
        (("F0 F1 B1 B0", "F0 F1 B1 B0"), "runs B on micro-batches"),
        (("F0 F1 B0", "F0 F1 B0"), "stage 0 runs B on micro-batches"),
        (("F0 R0 F1 R1 B0 B1", "F0 B0 F1 B1"), "holds two recomputed"),
        (("F0 I0 F1 W0 I1 W1", "F0 I0 W0 F1 I1"), "stage 1 runs W on micro-batches"),
        (("F0 W0 I0",), "runs W0 before I0"),
    ],
)
def test_a_list_that_cannot_be_run_is_refused(lists: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        validate(listed(*lists))


def test_a_list_that_owes_more_weight_passes_than_it_says_is_refused() -> None:
    (todo,) = listed("F0 F1 I0 I1 W0 W1")
    validate([replace(todo, pending=2)])
    with pytest.raises(InvalidInput, match="stage 0 owes more than 1 W after I1"):
        validate([replace(todo, pending=1)])


def test_a_list_that_can_be_run_passes() -> None:
    validate(listed("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"))
    validate(listed("F0 F1 R0 I0 W0 R1 I1 W1", "F0 I0 F1 I1 W0 W1"))

import torch

from benchmarks.emulated import First, Pace, Times, Work
from varuna_runtime.worker.split import backward_input, backward_weight

TIMES = Times(forward_s=1.0, input_s=2.0, weight_s=3.0)


class Recorded(Pace):
    """Notes the time that would pass."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_each_half_of_a_backward_takes_its_own_time() -> None:
    pace = Recorded()
    work = Work(TIMES, pace)
    x = torch.zeros(1, 4, requires_grad=True)
    for wanted, seconds in (([x], [2.0]), ([work.weight], [3.0]), ([x, work.weight], [2.0, 3.0])):
        output = work(x)
        assert pace.slept == [1.0]
        pace.slept.clear()
        torch.autograd.grad([output], wanted, [torch.ones(1, 4)])
        assert sorted(pace.slept) == seconds
        pace.slept.clear()


def test_our_split_of_a_backward_pays_for_neither_half_twice() -> None:
    pace = Recorded()
    work = Work(TIMES, pace)
    x = torch.zeros(1, 4, requires_grad=True)
    output = work(x)
    pace.slept.clear()
    found, owed = backward_input([output], [torch.ones(1, 4)], [x], [work.weight])
    assert pace.slept == [2.0]
    assert found[0] is not None
    (gradient,) = backward_weight(owed)
    assert pace.slept == [2.0, 3.0]
    assert gradient is not None
    assert gradient.tolist() == [4.0]


def test_the_first_stage_pays_for_both_halves_though_its_input_has_no_gradient() -> None:
    pace = Recorded()
    first = First(TIMES, pace, width=4)
    first(torch.zeros(1, 1)).sum().backward()
    assert sorted(pace.slept) == [1.0, 2.0, 3.0]


def test_halves_of_a_stage_take_half_of_its_time() -> None:
    assert TIMES.split(2).micro_s == TIMES.micro_s / 2

from itertools import count

import pytest
import torch

from varuna_runtime.worker.stopwatch import Stopwatch

CPU = torch.device("cpu")


def test_only_what_is_inside_is_counted_until_the_next_step() -> None:
    ticks = count()
    watch = Stopwatch(CPU, now_s=lambda: float(next(ticks)))
    for _ in range(3):
        with watch:
            pass
        next(ticks)  # waiting
    assert watch.taken_s() == 3.0
    watch.reset()
    assert watch.taken_s() == 0.0


def test_an_op_that_fails_is_counted_and_fails() -> None:
    ticks = count()
    watch = Stopwatch(CPU, now_s=lambda: float(next(ticks)))
    with pytest.raises(ValueError, match="bad"), watch:
        raise ValueError("bad")
    assert watch.taken_s() == 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_ops_count_until_their_kernels_end() -> None:
    device = torch.device("cuda")
    watch = Stopwatch(device)
    for _ in range(2):  # the second step uses the first one's events
        watch.reset()
        with watch:
            torch.cuda._sleep(10_000_000)  # cycles; returns at once
        assert watch.taken_s() > 0

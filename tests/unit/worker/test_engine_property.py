from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import toys
from tests.support.fleet import Fleet, assert_equal_bits
from varuna_runtime.spec.layout import ScheduleKind


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    stages=st.integers(1, 4),
    replicas=st.integers(1, 3),
    num_micro=st.integers(1, 6),
    schedule=st.sampled_from(ScheduleKind),
    recompute=st.booleans(),
    is_ragged=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_layout_schedule_and_order_of_ranks_ends_with_the_bits_of_one_process(
    stages: int,
    replicas: int,
    num_micro: int,
    schedule: ScheduleKind,
    recompute: bool,
    is_ragged: bool,
    seed: int,
) -> None:
    replicas = min(replicas, num_micro)
    training = toys.tied_training(batch_size=2 * num_micro - is_ragged, steps=1)
    virtual = min(4, num_micro)
    alone = Fleet(training, "1x1", virtual_replicas=virtual).train(1)
    ran = Fleet(
        training,
        f"{stages}x{replicas}",
        virtual_replicas=virtual,
        schedule=schedule,
        recompute=recompute,
    ).train(1, seed=seed)
    assert_equal_bits(ran, alone)

from dataclasses import replace
from typing import Any

import pytest

from varuna_runtime.spec import canonical
from varuna_runtime.spec.model import TiedParameter, TiedUse
from varuna_runtime.spec.profile import LinkCost, ProfiledModel, ReduceCost
from varuna_runtime.spec.profile_checks import difference, flaw
from varuna_runtime.spec.synthetic import SyntheticCosts, equal_segments, synthetic

LINK = LinkCost(latency_s=1e-4, bandwidth_bps=1e10)
COSTS = SyntheticCosts(
    micro_batch_size=2,
    forward_s=0.25,
    backward_s=0.5,
    output_bytes=100,
    saved_bytes=1000,
    optimizer_factor=2.0,
    optimizer_step_s_per_byte=1e-10,
    same_node=LINK,
    cross_node=LINK,
)
MADE = synthetic(equal_segments(3, 400), COSTS)


def spoilt(**fields: Any) -> ProfiledModel:
    """The profile with other numbers in its second segment."""
    (at,) = MADE.profile.by_micro_batch
    first, second, third = at.segments
    changed = replace(at, segments=(first, replace(second, **fields), third))
    return replace(MADE, profile=replace(MADE.profile, by_micro_batch=(changed,)))


def test_a_synthetic_profile_has_equal_segments_and_no_flaw() -> None:
    (at,) = MADE.profile.by_micro_batch
    assert flaw(MADE) == ""
    assert [cost.forward_s for cost in at.segments] == [0.25] * 3
    assert [cost.output_bytes for cost in at.segments] == [100, 100, 0]
    assert [cost.optimizer_bytes for cost in at.segments] == [800] * 3
    assert canonical.loads(ProfiledModel, canonical.dumps(MADE)) == MADE


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"forward_s": -1.0}, "forward_s of segment 1"),
        ({"saved_bytes": -5}, "saved_bytes of segment 1"),
        ({"input_s": float("nan")}, "input_s of segment 1"),
        ({"backward_s": float("inf")}, "backward_s of segment 1"),
        ({"forward_s": 1e300}, "forward_s of segment 1"),
        ({"param_bytes": 10**400}, "param_bytes of segment 1"),
    ],
)
def test_a_number_that_nothing_can_cost_is_named(fields: dict[str, Any], word: str) -> None:
    assert word in flaw(spoilt(**fields))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"by_micro_batch": ()}, "micro-batch sizes"),
        ({"by_micro_batch": MADE.profile.by_micro_batch * 2}, "ascending"),
        ({"model_hash": "other"}, "another model"),
        ({"cross_node": replace(LINK, bandwidth_bps=0.0)}, "cross_node.bandwidth_bps"),
        ({"same_node": replace(LINK, latency_s=-1.0)}, "same_node.latency_s"),
        ({"reductions": (ReduceCost(replicas=1, num_bytes=8, seconds=1.0),)}, "over 1 replicas"),
        ({"reductions": (ReduceCost(replicas=2, num_bytes=8, seconds=0.0),)}, "took 0.0 s"),
        ({"host_to_device_bps": 0.0}, "host_to_device_bps"),
        ({"cross_node": replace(LINK, bandwidth_bps=1e-300)}, "cross_node.bandwidth_bps"),
        ({"cross_node": replace(LINK, late_s=(0.0, float("nan")))}, "cross_node.late_s[1]"),
        ({"cross_node": replace(LINK, late_s=(0.1, 0.0))}, "cross_node.late_s"),
        ({"compute_factor": (1.0,)}, "compute_factor"),
        ({"compute_factor": (-1.0, 1.0)}, "compute_factor[0]"),
        ({"optimizer_step_s_per_byte": -1.0}, "optimizer_step_s_per_byte"),
        ({"optimizer_step_s_per_byte": float("nan")}, "optimizer_step_s_per_byte"),
        ({"by_micro_batch": (replace(MADE.profile.by_micro_batch[0], input_bytes=-1),)}, "input_bytes"),
    ],
)
def test_what_no_planner_can_use_is_named(fields: dict[str, Any], word: str) -> None:
    assert word in flaw(replace(MADE, profile=replace(MADE.profile, **fields)))


def test_costs_for_fewer_segments_than_the_model_has_are_a_flaw() -> None:
    (at,) = MADE.profile.by_micro_batch
    short = replace(at, segments=at.segments[:2])
    profile = replace(MADE.profile, by_micro_batch=(short,))
    assert "2 segments have costs" in flaw(replace(MADE, profile=profile))


def test_a_model_that_takes_no_time_is_a_flaw() -> None:
    costs = replace(COSTS, forward_s=0.0, backward_s=0.0)
    assert "no segment takes any time" in flaw(synthetic(equal_segments(3, 400), costs))
    assert flaw(spoilt(forward_s=0.0, backward_s=0.0)) == ""


def test_a_tied_parameter_of_a_segment_that_is_not_there_is_a_flaw() -> None:
    def tied(*segments: int) -> ProfiledModel:
        uses = tuple(TiedUse(segment=index, name="w") for index in segments)
        return replace(MADE, model=replace(MADE.model, tied=(TiedParameter(uses=uses),)))

    assert flaw(tied(0, 2)) == ""
    assert "used in segments [3]" in flaw(tied(0, 3))


def test_the_first_difference_between_two_models_is_told() -> None:
    model = equal_segments(3, 400)
    assert difference(model, equal_segments(3, 400)) == ""
    assert "3 segments, the job's model has 4" in difference(model, equal_segments(4, 400))
    assert "400 bytes of parameters, the job's has 800" in difference(model, equal_segments(3, 800))
    renamed = replace(model, segments=(*model.segments[:2], replace(model.segments[2], name="head")))
    assert "segment 2 is segment2, the job's is head" in difference(model, renamed)

import pytest
from torch.distributed.pipelining import schedules

from benchmarks.emulated import Times
from benchmarks.emulated_cases import Setting
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.peers import one_f_one_b_order
from benchmarks.report import markdown
from benchmarks.testbed import Run


def run(wall_s: float, foreign: float = 0.0) -> Run:
    return Run(wall_s=wall_s, cpu_s=(0.1,), foreign=foreign, values=(None,))


def samples(ours: list[Run], theirs: list[Run]) -> Samples:
    found = Samples()
    for round_, pair in enumerate(zip(ours, theirs, strict=True)):
        for name, each in zip(("ours", "theirs"), pair, strict=True):
            found.add(round_, name, each)
    return found


def test_a_speedup_is_the_median_of_the_ratios_of_the_rounds() -> None:
    found = samples([run(1.0), run(2.0), run(1.0)], [run(3.0), run(4.0), run(2.0)])
    assert found.speedup("ours", "theirs").median == 2.0
    assert found.best(["theirs", "ours", "absent"]) == "ours"


def test_rounds_with_foreign_load_do_not_count_if_enough_others_remain() -> None:
    noisy = samples([run(1.0)] * 5 + [run(9.0, 1.0)], [run(2.0)] * 6)
    assert noisy.speedup("ours", "theirs") == Spread(median=2.0, low=2.0, high=2.0, count=5)
    assert noisy.num_noisy == 1
    hopeless = samples([run(1.0, 1.0)] * 6, [run(3.0)] * 6)
    assert hopeless.speedup("ours", "theirs").count == 6


@pytest.mark.parametrize(("value", "at_most", "is_met"), [(1.0, False, True), (1.2, True, False)])
def test_a_claim_is_met_at_its_target_and_not_beyond(value: float, at_most: bool, is_met: bool) -> None:
    claim = Claim(text="", value=Spread.of([value]), target=1.0, at_most=at_most)
    assert claim.is_met is is_met


def test_a_report_shows_misses_as_such() -> None:
    case = Case(name="E0", title="nothing", settings="none")
    case.rows = [Row(name="ours", step_s=Spread.of([1.5]), shares={"of the limit": 0.5})]
    case.claims = [Claim(text="faster", value=Spread.of([0.5]), target=1.0)]
    text = markdown([case], machine={"cpu": "one"}, date="today", command="this")
    assert "| E0 | faster | 0.500 [0.500-0.500] | >= 1 | MISS |" in text
    assert "| ours | 1.500 s [1.500-1.500], 1 | 0.500 |" in text


def test_limits_count_the_fill_and_for_whole_backwards_the_drain() -> None:
    setting = Setting(stages=4, micro=16, times=Times(forward_s=0.03, input_s=0.03, weight_s=0.03))
    assert setting.whole_limit_s(0.0223) == pytest.approx(1.8438)
    assert setting.split_limit_s(0.0223) == pytest.approx(1.44 + 3 * 0.0523)
    assert setting.chunked_limit_s(0.0223) == pytest.approx(1.44 + 3 * 0.0373)


def test_the_peers_1f1b_order_does_everything_once() -> None:
    order = one_f_one_b_order(3, 5)
    for stage, actions in order.items():
        forwards = [a.microbatch_index for a in actions if a and a.computation_type is schedules.FORWARD]
        backwards = [
            a.microbatch_index for a in actions if a and a.computation_type is schedules.FULL_BACKWARD
        ]
        assert forwards == backwards == list(range(5))
        warm_up = [a.computation_type for a in actions if a][: 3 - stage]
        assert warm_up == [schedules.FORWARD] * (3 - stage)

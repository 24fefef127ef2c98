import pytest

from varuna_manager.core.config import CoreConfig
from varuna_runtime.spec.errors import InvalidInput


@pytest.mark.parametrize(
    "changed",
    [
        {"lease_s": 0.5},  # three beats do not fit into it
        {"beat_s": 0.0},
        {"suspect_s": 0.8},  # three beats do not fit into it
        {"suspect_s": 4.0},  # the lease would end first
        {"lease_s": 90.0},  # a start would be given up before a lost node is noticed
        {"activate_timeout_s": 200.0},
        {"prepare_timeout_s": 700.0},
        {"notice_margin_s": 61.0},
        {"drain_timeout_s": 2.0, "notice_margin_s": 1.0},
        {"failure_backoff_s": 61.0},
    ],
    ids=str,
)
def test_time_outs_in_the_wrong_order_are_refused_with_both_names(changed: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"wanted 0 < \w+"):
        CoreConfig(**changed)  # type: ignore[arg-type]


def test_a_longer_lease_moves_what_depends_on_it() -> None:
    config = CoreConfig(lease_s=20.0)
    assert config.restart_lease_s == 27.0
    assert config.tick_gap_s == 10.0

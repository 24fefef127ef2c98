import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measured import case, cases, is_steady, read
from varuna_manager.planner.calibrate import MeasuredStep
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Layout

DATA = Path(__file__).parents[2] / "data" / "measured"


def rows() -> list[dict[str, Any]]:
    return [
        {"D": d, "P": p, "iter_ms": 1000 * (0.1 + (64 / d - 1) * (0.1 / p + 0.01) + 0.01 * p)}
        for d in (1, 2, 4)
        for p in (2, 4, 8)
    ]


def text(found: list[Any], **other: Any) -> str:
    return json.dumps({"model": "m", "microbatch_size": 1, "global_batch_size": 64, "rows": found, **other})


def test_rows_made_by_the_model_itself_are_predicted_without_error() -> None:
    found = case(read(text(rows()), "m.json"))
    assert found.is_met
    error, tau, regret = (claim.value.median for claim in found.claims)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert tau == 1.0
    assert regret == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt-1.5b"])
def test_most_measured_layouts_of_a_real_cluster_are_predicted_within_five_percent(name: str) -> None:
    found = case(read((DATA / f"{name}.json").read_text(), name))
    error, tau, _ = (claim.value.median for claim in found.claims)
    assert error <= 0.05
    assert tau >= 0.8


def test_a_rate_will_do_where_there_is_no_time() -> None:
    given = [{"D": r["D"], "P": r["P"], "samples_per_s": 64_000 / r["iter_ms"]} for r in rows()]
    wanted = read(text(rows()), "a").rows
    found = read(text(given), "b").rows
    assert [row.step_s for row in found] == pytest.approx([row.step_s for row in wanted])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"D": 1, "P": 3, "iter_ms": 0}, "iter_ms: seen 0, wanted a number above zero"),
        ({"D": 1, "P": 3, "iter_ms": -1.0}, "above zero"),
        ({"D": 1, "P": 3, "iter_ms": float("nan")}, "above zero"),
        ({"D": 1, "P": 3, "iter_ms": "fast"}, "above zero"),
        ({"D": 1, "P": 3, "iter_ms": 10**400}, "above zero"),
        ({"D": 1.5, "P": 3, "iter_ms": 2000.0}, "D: seen 1.5"),
        ({"D": 1, "P": 3}, "neither iter_ms nor samples_per_s"),
        ({"D": 1, "P": 3, "iter_ms": None}, "neither"),
        ({"D": 1, "P": 3, "iter_ms": 2000.0, "samples_per_s": 1.0}, "says 2.000 s"),
        ({"D": 0, "P": 3, "iter_ms": 2000.0}, "D: seen 0"),
        ({"D": 1, "iter_ms": 2000.0}, "P: seen None"),
        ({"D": 65, "P": 1, "iter_ms": 2000.0}, "without a micro-batch"),
        ({"D": 1, "P": 2, "iter_ms": 2000.0}, "there twice"),
        ({"D": 1, "P": 3, "iter_ms": 1e9}, "times the median"),
        ({"D": 1, "P": 3, "iter_ms": 1e-3}, "times the median"),
        ("D=1", "wanted D, P and iter_ms"),
    ],
)
def test_a_row_that_is_no_measurement_is_left_out_and_told(bad: Any, why: str) -> None:
    model = read(text([*rows(), bad]), "m.json")
    assert len(model.rows) == len(rows())
    assert len(model.refused) == 1
    assert why in model.refused[0]
    assert model.refused[0] in case(model).notes


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "no JSON"),
        ("[]", "no list `rows`"),
        (json.dumps({"rows": rows(), "microbatch_size": 1}), "global_batch_size: seen None"),
        (text(rows(), microbatch_size=0), "microbatch_size: seen 0"),
        (text(rows(), num_segments=2.5), "num_segments: seen 2.5"),
        (text([]), "seen 0 usable rows, wanted at least 4"),
        (text([*rows()[:3], {"D": 1}]), "seen 3 usable rows.*row 4 left out"),
    ],
)
def test_a_file_of_no_use_is_refused_by_name(content: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"m.json.*{why}"):
        read(content, "m.json")


def test_whole_numbers_may_be_written_with_a_point() -> None:
    given = [{**row, "D": float(row["D"])} for row in rows()]
    assert read(text(given), "a").rows == read(text(rows()), "b").rows


def test_of_a_folder_every_file_has_a_case_and_a_bad_one_says_why(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(text(rows()))
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    bad, good = cases(tmp_path, lambda _: None)
    assert good.is_met
    assert bad.has_failed
    assert "bad.json: no JSON" in bad.settings
    with pytest.raises(InvalidInput, match="seen no"):
        cases(tmp_path / "nowhere", lambda _: None)


def test_more_stages_than_segments_is_no_layout() -> None:
    model = read(text(rows(), num_segments=4), "m.json")
    assert {row.layout.stages for row in model.rows} == {2, 4}
    assert len(model.refused) == 3


def test_a_row_is_unsteady_where_a_part_of_it_was_much_faster() -> None:
    one, two, three = (
        MeasuredStep(layout=Layout(stages=p, replicas=d), step_s=s)
        for d, p, s in ((1, 2, 10.0), (2, 2, 11.5), (1, 4, 10.9))
    )
    every = (one, two, three)
    assert [is_steady(row, every) for row in every] == [True, False, True]

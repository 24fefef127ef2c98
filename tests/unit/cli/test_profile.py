import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from varuna_manager.cli.profile_file import profile_for, read_profile
from varuna_manager.cli.profile_view import duration, view
from varuna_manager.cli.root import REFUSED, USAGE, run
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.profile import ReduceCost
from varuna_runtime.spec.synthetic import equal_segments

NUMBERS = ["--segments", "6", "--params", "4M", "--forward", "0.02", "--output-size", "1M"]


def made(folder: Path, *options: str) -> Path:
    path = folder / "profile.json"
    assert run(["profile", "--synthetic", *NUMBERS, "-o", str(path), *options]) == 0
    return path


def test_a_synthetic_profile_shows_equal_segments_in_one_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "--bandwidth", "25")
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if line.startswith("0..4"))
    assert row.split()[1:5] == ["20", "ms", "40", "ms"]
    assert any(line.startswith("5 ") for line in shown.splitlines())  # the last one hands nothing on
    assert "link between nodes: 100 us and 25 Gbit/s" in shown


def test_measured_sums_and_copies_and_whose_steps_it_is_fitted_to_are_shown(tmp_path: Path) -> None:
    found = read_profile(made(tmp_path))
    sums = (
        ReduceCost(replicas=2, num_bytes=2**21, seconds=0.004),
        ReduceCost(replicas=2, num_bytes=2**23, seconds=0.01, crosses_nodes=False),
    )
    known = replace(found.profile, reductions=sums, host_to_device_bps=4e11, refreshed_by="steps of a test")
    text = StringIO()
    Console(file=text, width=200).print(view(replace(found, profile=known)))
    assert "sums over replicas: 2 MiB over 2 in 4 ms, 8 MiB over 2 on one node in 10 ms" in text.getvalue()
    assert "host to device: 400 Gbit/s" in text.getvalue()
    assert "fitted to steps of a test" in text.getvalue()


def test_what_is_written_is_what_is_read_and_what_json_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, "--json")
    found = read_profile(path)
    assert len(found.model.segments) == len(found.profile.by_micro_batch[0].segments) == 6
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    assert profile_for(path, equal_segments(6, 4 * 2**20)) == found.profile


def test_numbers_that_no_planner_can_use_are_refused_when_they_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    assert run(["profile", "--synthetic", *NUMBERS, "--latency", f"{10**20}s", "-o", str(path)]) == REFUSED
    assert "same_node.latency_s is 1e+20" in capsys.readouterr().err
    assert not path.exists()


def test_a_profile_of_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="6 segments, the job's model has 7"):
        profile_for(made(tmp_path), equal_segments(7, 4 * 2**20))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": 1, "profile": 2}', "words"])
def test_a_file_that_holds_no_profile_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"p\.json"):
        read_profile(path)


def test_a_missing_or_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_profile(tmp_path / "p.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read_profile(tmp_path / "binary")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--synthetic"],
        ["--synthetic", "--forward", "1", "--output-size", "1M"],
        ["--synthetic", "--forward", "1", "--output-size", "1M", "--segments", "3", "job.yaml"],
        ["--synthetic", *NUMBERS, "--bandwidth", "0"],
    ],
)
def test_numbers_that_are_missing_or_too_many_are_wrong_usage(words: list[str]) -> None:
    assert run(["profile", *words]) == USAGE


def test_a_profile_for_a_job_that_starts_is_wrong_usage(tmp_path: Path) -> None:
    assert run(["submit", "job.yaml", "--profile", str(made(tmp_path))]) == USAGE


def test_a_job_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert run(["profile", str(tmp_path / "job.yaml")]) == REFUSED


@pytest.mark.parametrize(
    ("value_s", "shown"), [(0.0, "0 s"), (1.5, "1.5 s"), (2.5e-3, "2.5 ms"), (4e-7, "0.4 us"), (95.0, "95 s")]
)
def test_short_times_keep_three_digits(value_s: float, shown: str) -> None:
    assert duration(value_s) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Invalid JSON"),
        ('{"model": {"segments": 3}, "profile": 7}', "segments: Input should be a valid array (and 4 more)"),
    ],
)
def test_what_is_no_profile_is_refused_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_profile(path)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)

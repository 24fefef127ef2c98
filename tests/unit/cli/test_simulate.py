"""`varuna simulate` with a stored profile: what people and programs read, and what is refused."""

import json
from pathlib import Path

import pytest

from varuna_manager.cli import root

HERE = Path(__file__).parents[3]
AWS, GCP = (HERE / "tests/data/traces" / n for n in ("aws-p3-us-east.csv", "gcp-v100-us-east1c.txt"))
PROFILE = HERE / "benchmarks/data/gpt-profile.json"
JOB = HERE / "examples/gpt/job.yaml"


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str, trace: Path = AWS) -> tuple[int, str, str]:
    code = root.run(
        ["simulate", "--trace", str(trace), "--job", str(JOB), "--profile", str(PROFILE), *arguments]
    )
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("trace", [AWS, GCP])
def test_the_policies_stand_side_by_side(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = simulate(capsys, "--to", "30m", "--price", "0.9", trace=trace)
    assert code == 0
    assert out.splitlines()[2].split() == ["ours", "paper"]
    for word in ("goodput", "morphs", "time parked", "lost work", "node hours", "cost", "300 steps done"):
        assert word in out


def test_programs_read_the_same_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    code, out, _ = simulate(
        capsys, "--to", "30m", "--json", "--policy", "ours", "--notice", "2m", "--plot", str(plot)
    )
    found = json.loads(out)
    assert code == 0
    assert found["length_s"] == 1800.0
    (ours,) = found["policies"]
    assert (ours["policy"], ours["cost"], ours["lost_steps"]) == ("ours", None, 0)
    assert ours["spans"][0] == {
        "start_s": 0.0,
        "end_s": pytest.approx(10.1),
        "doing": "moving",
        "layout": "",
        "num_nodes": 0,
        "step_s": 0.0,
    }
    assert plot.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no lines"),
        ("0,add,a\n12,oops,a\n", "line 2"),
        ("t,n\n", "line 1"),
        ("0,add,a\n10,add,b\n5,remove,a\n", "line 3"),
        ("0,add,a\n", "lasts 0 s"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_refused(
    text: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "pool.csv"
    trace.write_text(text)
    code, _, err = simulate(capsys, trace=trace)
    assert code == 1
    assert words in err


def test_a_single_line_is_a_pool_that_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "pool.csv"
    trace.write_text("2026-11-30, 10:00:00, 4\n")
    code, out, _ = simulate(capsys, "--to", "1h", "--json", "--policy", "ours", trace=trace)
    assert code == 0
    assert json.loads(out)["policies"][0]["node_hours"] == pytest.approx(4.0)


def test_why_there_never_was_a_plan_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    little = ("--to", "30m", "--policy", "ours", "--memory", "1M")
    code, out, _ = simulate(capsys, *little)
    assert code == 0
    assert "no plan at any time: no layout fits" in out
    assert "use slots with" in out
    refusal = json.loads(simulate(capsys, *little, "--json")[1])["refusal"]
    assert refusal["reason"].startswith("no layout fits")
    assert json.loads(simulate(capsys, *little[:-2], "--json")[1])["refusal"] is None


def test_by_cost_the_price_of_a_node_must_be_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    thrifty = tmp_path / "thrifty.yaml"
    thrifty.write_text("name: thrifty\nlike: ours\nobjective: cost\n")
    arguments = ("--to", "30m", "--policy", f"{thrifty},paper")
    code, _, err = simulate(capsys, *arguments)
    assert code == 1
    assert "give --price" in err
    assert simulate(capsys, *arguments, "--price", "1")[0] == 0


def test_a_pool_that_never_has_a_node_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "pool.csv"
    trace.write_text("2026-11-30, 10:00:00, 0\n2026-11-30, 11:00:00, 0\n")
    code, out, _ = simulate(capsys, "--json", trace=trace)
    assert code == 0
    assert [policy["parked_s"] for policy in json.loads(out)["policies"]] == [3600.0, 3600.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "mine"], "wanted ours, paper"),
        (["--policy", "ours,ours"], "a name of its own"),
        (["--policy", "missing.yaml"], "cannot be read"),
        (["--from", "3h", "--to", "2h"], "wanted a time to replay"),
        (["--trace", "/nowhere"], "cannot be read"),
        (["--profile", str(JOB)], "wanted JSON as `varuna profile"),
    ],
)
def test_mistakes_say_what_was_wanted(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = simulate(capsys, *arguments)
    assert code == 1
    assert words in err

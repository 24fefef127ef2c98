"""Is the planner fast, its bound true and its plans near the best? `python -m benchmarks.planner --help`."""

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import planner_cases, report
from benchmarks.measure import Case
from benchmarks.options import Options
from benchmarks.testbed import machine

RESULTS = Path(__file__).parent / "results"
CASES: dict[str, Callable[[Options], Case]] = {
    "speed": planner_cases.speed,
    "bounds": planner_cases.bounds,
    "brute": planner_cases.brute_force,
    "gap": planner_cases.gaps,
    "simulator": planner_cases.simulator,
}


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--only", help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds of every timing (default: each case's own)")
    parser.add_argument("--quick", action="store_true", help="fewer random cases")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the report")
    parser.add_argument("--stem", help="file name of the report (default: <date>-planner)")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; wanted some of {', '.join(CASES)}")
    options = Options(num_rounds=given.rounds, quick=given.quick)
    cases = [CASES[name](options) for name in names]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command = " ".join(["python -m benchmarks.planner", *arguments])
    text = report.markdown(cases, machine=machine(), date=date, command=command, title="The planner")
    report.write(given.results, given.stem or f"{date}-planner", cases, text, machine())
    print(text)
    return 0 if all(case.is_met for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

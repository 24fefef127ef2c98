"""All cases of the pipeline against torch.distributed.pipelining: `python -m benchmarks.pipeline --help`."""

import argparse
import datetime
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import emulated_cases, jitter_case, overhead_case, real_case, reduction_case, report
from benchmarks.measure import Case
from benchmarks.options import Options
from benchmarks.testbed import RankFailed, cleaned_up, machine

CASES: dict[str, Callable[[Options], Case]] = {
    "E1": emulated_cases.e1,
    "E2": emulated_cases.e2,
    "E3": emulated_cases.e3,
    "E4": real_case.e4,
    "E5": overhead_case.e5,
    "E6": jitter_case.e6,
    "E7": reduction_case.e7,
}
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="cases, e.g. E1,E5 (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds of every case (default: each case's own)")
    parser.add_argument("--quick", action="store_true", help="two rounds of everything")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the report")
    parser.add_argument("--stem", help="file name of the report (default: <date>-pipeline)")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; wanted some of {', '.join(CASES)}")
    options = Options(num_rounds=given.rounds, quick=given.quick)
    torch.set_num_threads(1)
    gc.freeze()
    cases: list[Case] = []
    with cleaned_up():
        for name in names:
            options.say(f"{name}")
            cases.append(_measured(name, options))
            text = _written(cases, given.results, given.stem, arguments)
    print(text)
    return 0 if all(case.is_met for case in cases) else 1


def _measured(name: str, options: Options) -> Case:
    try:
        return CASES[name](options)
    except RankFailed as err:  # the other cases are still worth measuring
        print(err, file=sys.stderr, flush=True)
        return Case(name=name, title="failed", settings=str(err).splitlines()[0], has_failed=True)


def _written(cases: Sequence[Case], folder: Path, stem: str | None, arguments: Sequence[str]) -> str:
    """Write the report of the cases so far, and return it."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    here = machine()
    command = " ".join(["python -m benchmarks.pipeline", *arguments])
    text = report.markdown(cases, machine=here, date=date, command=command)
    report.write(folder, stem or f"{date}-pipeline", cases, text, here)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

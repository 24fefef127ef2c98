"""Is the planner right? Predicted against measured step times: `python -m benchmarks.accuracy --help`."""

import argparse
import datetime
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import emulated_accuracy, measured, real_accuracy, report
from benchmarks.measure import Case
from benchmarks.options import Options
from benchmarks.testbed import RankFailed, cleaned_up, machine
from varuna_runtime.spec.errors import InvalidInput

RESULTS = Path(__file__).parent / "results"
MEASURED = Path(__file__).parents[1] / "tests" / "data" / "measured"
CASES: dict[str, Callable[[Options], Case]] = {
    "emulated": emulated_accuracy.case,
    "real": real_accuracy.case,
}


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed, 2 if there is nothing to run on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--only", help=f"some of measured, {', '.join(CASES)} (default: all)")
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="DIR",
        help="folder of measured layouts, a JSON file each; without --only, nothing else runs",
    )
    parser.add_argument("--rounds", type=int, help="rounds of every case (default: each case's own)")
    parser.add_argument("--quick", action="store_true", help="few layouts, one round")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the report")
    parser.add_argument("--stem", help="file name of the report (default: <date>-accuracy)")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else ["measured", *([] if given.measured else CASES)]
    if unknown := [name for name in names if name != "measured" and name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; wanted some of measured, {', '.join(CASES)}")
    options = Options(num_rounds=given.rounds, quick=given.quick)
    torch.set_num_threads(1)
    gc.freeze()
    cases: list[Case] = []
    with cleaned_up():
        for name in names:
            options.say(name)
            try:
                cases += _found(name, given.measured or MEASURED, options)
            except InvalidInput as err:
                print(err, file=sys.stderr)
                return 2
            text = _written(cases, given.results, given.stem, arguments)
    print(text)
    return 0 if all(case.is_met for case in cases) else 1


def _found(name: str, folder: Path, options: Options) -> list[Case]:
    if name == "measured":
        return measured.cases(folder, options.say)
    try:
        return [CASES[name](options)]
    except RankFailed as err:  # the other cases are still worth measuring
        print(err, file=sys.stderr, flush=True)
        return [Case(name=name, title="failed", settings=str(err).splitlines()[0], has_failed=True)]


def _written(cases: Sequence[Case], folder: Path, stem: str | None, arguments: Sequence[str]) -> str:
    """Write the report of the cases so far, and return it."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    here = machine()
    command = " ".join(["python -m benchmarks.accuracy", *arguments])
    text = report.markdown(cases, machine=here, date=date, command=command, title="Accuracy of the planner")
    report.write(folder, stem or f"{date}-accuracy", cases, text, here)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

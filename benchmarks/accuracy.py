"""Is the planner right? Predicted against measured step times: `python -m benchmarks.accuracy --help`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import emulated_accuracy, measured, real_accuracy
from benchmarks.command import Command, MakeCases, single
from varuna_runtime.spec.errors import InvalidInput

MEASURED = Path(__file__).parents[1] / "tests" / "data" / "measured"


def measured_in(folder: Path) -> MakeCases:
    """Return what makes the cases of the measured layouts in a folder."""
    return lambda options: measured.cases(folder, options.say)


COMMAND = Command(
    name="accuracy",
    title="Accuracy of the planner",
    about=__doc__,
    cases={
        "measured": measured_in(MEASURED),
        "emulated": single(emulated_accuracy.case),
        "real": single(real_accuracy.case),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed, 2 if there is nothing to run on."""
    parser = COMMAND.parser()
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="DIR",
        help="folder of measured layouts, a JSON file each; without --only, nothing else runs",
    )
    given = parser.parse_args(arguments)
    command, names = COMMAND, given.only or COMMAND.cases
    if given.measured:
        command = replace(COMMAND, cases={**COMMAND.cases, "measured": measured_in(given.measured)})
        names = given.only or ["measured"]
    try:
        return command.run(given, names, arguments)
    except InvalidInput as err:
        print(err, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

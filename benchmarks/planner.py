"""Is the planner fast, its bound true and its plans near the best? `python -m benchmarks.planner --help`."""

import sys
from collections.abc import Sequence

from benchmarks import planner_cases
from benchmarks.command import Command, single

COMMAND = Command(
    name="planner",
    title="The planner",
    about=__doc__,
    cases={
        "speed": single(planner_cases.speed),
        "bounds": single(planner_cases.bounds),
        "brute": single(planner_cases.brute_force),
        "gap": single(planner_cases.gaps),
        "simulator": single(planner_cases.simulator),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    given = COMMAND.parser().parse_args(arguments)
    return COMMAND.run(given, given.only or COMMAND.cases, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

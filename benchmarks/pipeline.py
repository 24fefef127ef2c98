"""All cases of the pipeline against torch.distributed.pipelining: `python -m benchmarks.pipeline --help`."""

import sys
from collections.abc import Sequence

from benchmarks import emulated_cases, jitter_case, overhead_case, real_case, reduction_case
from benchmarks.command import Command, single

COMMAND = Command(
    name="pipeline",
    title="Pipeline benchmarks",
    about=__doc__,
    cases={
        "E1": single(emulated_cases.e1),
        "E2": single(emulated_cases.e2),
        "E3": single(emulated_cases.e3),
        "E4": single(real_case.e4),
        "E5": single(overhead_case.e5),
        "E6": single(jitter_case.e6),
        "E7": single(reduction_case.e7),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    given = COMMAND.parser().parse_args(arguments)
    return COMMAND.run(given, given.only or COMMAND.cases, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

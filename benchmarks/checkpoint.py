"""All cases of checkpoints against torch.distributed.checkpoint: `python -m benchmarks.checkpoint --help`."""

import sys
from collections.abc import Sequence

from benchmarks import disk_cases, s3_case, stall_case
from benchmarks.command import Command, single

COMMAND = Command(
    name="checkpoint",
    title="Checkpoint benchmarks",
    about=__doc__,
    cases={
        "C1": single(disk_cases.c1),
        "C2": single(stall_case.c2),
        "C3": single(disk_cases.c3),
        "C4": single(s3_case.c4),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    given = COMMAND.parser().parse_args(arguments)
    return COMMAND.run(given, given.only or COMMAND.cases, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

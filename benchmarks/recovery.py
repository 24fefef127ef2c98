"""Recovery from faults, ours beside torchrun and torchft: `python -m benchmarks.recovery --help`."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import (
    recovery_layouts,
    recovery_losses,
    recovery_manager,
    recovery_moves,
    recovery_notices,
    recovery_silence,
)
from benchmarks.command import Command, single
from benchmarks.recovery_processes import marked

BUSY_MINUTES = 1.0

COMMAND = Command(
    name="recovery",
    title="Recovery benchmarks",
    about=__doc__,
    cases={
        "R1": single(recovery_losses.r1),
        "R2": single(recovery_losses.r2),
        "R3": single(lambda options: recovery_silence.r3(options, BUSY_MINUTES)),
        "R4": single(recovery_moves.r4),
        "R5": single(recovery_layouts.r5),
        "R6": single(recovery_notices.r6),
        "R7": single(recovery_manager.r7),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; returns 1 if a claim is missed."""
    parser = COMMAND.parser()
    parser.add_argument(
        "--minutes",
        type=float,
        default=BUSY_MINUTES,
        help=f"how long R3 keeps all cores busy (default: {BUSY_MINUTES:g})",
    )
    given = parser.parse_args([word.upper() if _is_cases(word) else word for word in arguments])
    r3 = single(lambda options: recovery_silence.r3(options, given.minutes))
    with marked():
        command = replace(COMMAND, cases={**COMMAND.cases, "R3": r3})
        return command.run(given, given.only or command.cases, arguments)


def _is_cases(word: str) -> bool:
    return all(part.upper() in COMMAND.cases for part in word.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the command line asks for."""

from dataclasses import dataclass

from benchmarks.measure import Samples
from benchmarks.testbed import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long to measure, and how much to tell."""

    num_rounds: int | None  # None: each case's own default
    quick: bool
    quiet: bool = False

    def rounds(self, default: int) -> int:
        """Return the number of rounds of a case."""
        if self.num_rounds is not None:
            return self.num_rounds
        return 2 if self.quick else default

    def say(self, text: str) -> None:
        """Tell of progress."""
        if not self.quiet:
            print(text, flush=True)

    def keep(self, samples: Samples, round_: int, name: str, run: Run) -> None:
        """Add a run and tell of it."""
        samples.add(round_, name, run)
        cpu_s = max(run.cpu_s)
        self.say(
            f"  {round_:2d} {name:44s} {run.wall_s:7.3f} s  cpu {cpu_s:5.2f} s  foreign {run.foreign:.2f}"
        )

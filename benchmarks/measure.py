"""Samples of a comparison, noisy ones set aside, and what follows from the rest: ratios and claims."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from benchmarks.testbed import Run

FOREIGN_LIMIT = 0.15  # cores kept busy by others, above which a sample does not count
FEWEST = 5  # clean rounds; with fewer all count and the verdict says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of at least one value."""
        if len(values) == 1:
            return cls(median=values[0], low=values[0], high=values[0], count=1)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median=median(values), low=low, high=high, count=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One target: a ratio, and what it has to be at least (or at most)."""

    text: str
    value: Spread
    target: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """True if the median meets the target."""
        return self.value.median <= self.target if self.at_most else self.value.median >= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a case's table; `shares` are its columns beyond the time."""

    name: str
    step_s: Spread
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Case:
    """What one case found."""

    name: str
    title: str
    settings: str
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_failed: bool = False

    @property
    def is_met(self) -> bool:
        """True if it ran and every claim is met."""
        return not self.has_failed and all(claim.is_met for claim in self.claims)


class Samples:
    """The runs of one comparison, by configuration and round."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, Run]] = {}

    def add(self, round_: int, name: str, run: Run) -> None:
        """Keep a run."""
        self._runs.setdefault(name, {})[round_] = run

    @property
    def names(self) -> list[str]:
        """Configurations, in order of first appearance."""
        return list(self._runs)

    @property
    def num_noisy(self) -> int:
        """Number of runs with too much foreign load."""
        return sum(not _is_clean(run) for runs in self._runs.values() for run in runs.values())

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return sum(map(len, self._runs.values()))

    def runs(self, name: str) -> list[Run]:
        """Return the runs that count."""
        runs = list(self._runs[name].values())
        clean = [run for run in runs if _is_clean(run)]
        return clean if len(clean) >= min(FEWEST, len(runs)) else runs

    def step(self, name: str) -> Spread:
        """Return the wall time of a configuration."""
        return Spread.of([run.wall_s for run in self.runs(name)])

    def best(self, names: Sequence[str]) -> str:
        """Return the fastest configuration of those that ran."""
        return min((n for n in names if n in self._runs), key=lambda n: self.step(n).median)

    def speedup(self, ours: str, peer: str) -> Spread:
        """Return peer time / our time, by round."""
        common = sorted(self._runs[ours].keys() & self._runs[peer].keys())
        pairs = [(self._runs[ours][r], self._runs[peer][r]) for r in common]
        clean = [(a, b) for a, b in pairs if _is_clean(a) and _is_clean(b)]
        used = clean if len(clean) >= min(FEWEST, len(pairs)) else pairs
        return Spread.of([b.wall_s / a.wall_s for a, b in used])

    def of_limit(self, name: str, limit_s: float) -> Spread:
        """Return limit / time."""
        return Spread.of([limit_s / run.wall_s for run in self.runs(name)])

    def noise(self) -> str:
        """Say how many runs were set aside."""
        return f"{self.num_noisy} of {self.num_runs} runs had more than {FOREIGN_LIMIT} cores of foreign load"


def _is_clean(run: Run) -> bool:
    return run.foreign <= FOREIGN_LIMIT

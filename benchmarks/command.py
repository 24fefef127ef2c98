"""What every command does: read its arguments, run case after case, report those that are done."""

import argparse
import datetime
import gc
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.measure import Case
from benchmarks.options import Options
from benchmarks.testbed import RankFailed, cleaned_up, machine

RESULTS = Path(__file__).parent / "results"
MakeCases = Callable[[Options], Sequence[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One module of benchmarks; `title` heads its report."""

    name: str
    title: str
    about: str | None
    cases: Mapping[str, MakeCases]

    def parser(self) -> argparse.ArgumentParser:
        """Return the arguments that all commands have; `only` are names of cases, None for the default."""
        found = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.about)
        names = ", ".join(self.cases)
        found.add_argument(
            "--only", type=self._names, metavar="CASES", help=f"some of {names} (default: all)"
        )
        found.add_argument("--rounds", type=int, help="rounds of every case (default: each case's own)")
        found.add_argument("--quick", action="store_true", help="few cases and rounds")
        found.add_argument("--results", type=Path, default=RESULTS, help="folder for the report")
        found.add_argument("--stem", help=f"file name of the report (default: <date>-{self.name})")
        return found

    def run(self, given: argparse.Namespace, names: Iterable[str], arguments: Sequence[str]) -> int:
        """Run cases, write and print the report; returns 1 if a claim is missed."""
        options = Options(num_rounds=given.rounds, quick=given.quick)
        torch.set_num_threads(1)
        gc.freeze()
        found: list[Case] = []
        with cleaned_up():
            for name in names:
                options.say(name)
                found += self._made(name, options)
                text = self._written(found, given, arguments)
        print(text)
        return 0 if all(case.is_met for case in found) else 1

    def _names(self, text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in self.cases]:
            wanted = f"wanted some of {', '.join(self.cases)}"
            raise argparse.ArgumentTypeError(f"no case {', '.join(unknown)}; {wanted}")
        return names

    def _made(self, name: str, options: Options) -> Sequence[Case]:
        try:
            return self.cases[name](options)
        except Exception as err:  # the other cases are still worth measuring
            if not isinstance(err, RankFailed):
                traceback.print_exc()
            print(err, file=sys.stderr, flush=True)
            reason = str(err).partition("\n")[0] or type(err).__name__
            return [Case(name=name, title="failed", settings=reason, has_failed=True)]

    def _written(self, cases: Sequence[Case], given: argparse.Namespace, arguments: Sequence[str]) -> str:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        here, words = machine(), " ".join([f"python -m benchmarks.{self.name}", *arguments])
        text = report.markdown(cases, machine=here, date=date, command=words, title=self.title)
        report.write(given.results, given.stem or f"{date}-{self.name}", cases, text, here)
        return text


def single(make: Callable[[Options], Case]) -> MakeCases:
    """Return `make` as what makes one case."""
    return lambda options: [make(options)]

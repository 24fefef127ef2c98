"""Goodput of our policy and the paper's on recorded pools: `python -m benchmarks.replay --help`."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from varuna_manager import traces
from varuna_manager.whatif import Costs, Machines, Ours, Paper, Result, Scenario, compare, lent
from varuna_runtime.spec import canonical
from varuna_runtime.spec.job import JobSpec, Nodes
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

HERE = Path(__file__).parent
RECORDINGS = ("aws-p3-us-east.csv", "gcp-v100-us-east1c.txt")
MORPHS_S = (2.0, 12.0)
TARGET = 0.95  # of the ideal, ours, on the first recording at the first cost of a morph


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A variant of the example GPT: how much slower it computes, and how much memory a slot has."""

    name: str
    slower: float = 1.0
    memory_bytes: int = 16 * 2**30
    notice_s: float = 0.0


CASES = (
    Case(name="gpt"),
    Case(name="gpt, 30 s notice", notice_s=30.0),
    Case(name="gpt, 2 min notice", notice_s=120.0),
    Case(name="gpt, stages needed", memory_bytes=8 * 2**20),
    Case(name="gpt, 100 x the compute", slower=100.0),
    Case(name="gpt, 100 x the compute, 2 min notice", slower=100.0, notice_s=120.0),
)


def main(arguments: Sequence[str]) -> int:
    """Print and write the table; returns 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument(
        "--traces", type=Path, default=HERE.parent / "tests/data/traces", help="folder of the recordings"
    )
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    given = parser.parse_args(arguments)
    lines = [*_head()]
    goodput = []
    for name in RECORDINGS:
        recording = traces.parse((given.traces / name).read_text(), source=name)
        most = max(len(recording.offered(change.at_s)) for change in recording.changes)
        about = f"{name}, {recording.length_s / 3600:.1f} h, up to {most} nodes"
        for case in CASES:
            for morph_s, ours, paper in _replayed(_scenario(case, recording, most)):
                goodput.append(ours.goodput)
                lines.append(_row(about, case, morph_s, ours, paper))
                print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    if given.output is not None:
        given.output.write_text(text)
    print(f"target: {goodput[0]:.2%} of the ideal, wanted {TARGET:.0%}")
    return int(goodput[0] < TARGET)


def _replayed(scenario: Scenario) -> Iterator[tuple[float, Result, Result]]:
    """Yield (morph, ours, paper); both have the same costs, so that only their decisions differ."""
    costs = [Costs(morph_s=morph_s) for morph_s in MORPHS_S]
    compared = compare(scenario, [*(Ours(costs=one) for one in costs), *(Paper(costs=one) for one in costs)])
    yield from zip(MORPHS_S, compared.results[: len(costs)], compared.results[len(costs) :], strict=True)


def _scenario(case: Case, recording: traces.Recording, most: int) -> Scenario:
    stored = json.loads((HERE / "data/gpt-profile.json").read_text())
    model = canonical.loads(ModelRecord, json.dumps(stored["model"]))
    profile = canonical.loads(Profile, json.dumps(stored["profile"]))
    spec = JobSpec(
        name="gpt", entrypoint="train.py", batch_size=256, micro_batch_size=4, nodes=Nodes(min=1, max=most)
    )
    return Scenario(
        recording=lent(recording, most),
        spec=spec,
        model=model,
        profile=_slowed(profile, case.slower),
        machines=Machines(memory_bytes=case.memory_bytes, notice_s=case.notice_s),
    )


def _slowed(profile: Profile, factor: float) -> Profile:
    return replace(
        profile,
        by_micro_batch=tuple(
            replace(
                one,
                segments=tuple(
                    replace(
                        segment,
                        forward_s=segment.forward_s * factor,
                        backward_s=segment.backward_s * factor,
                    )
                    for segment in one.segments
                ),
            )
            for one in profile.by_micro_batch
        ),
    )


def _head() -> Iterator[str]:
    yield "# Recorded pools, our policy and the paper's\n"
    yield (
        "Goodput is the share of the ideal: the best plan for the nodes of each moment, without any morph. "
        "Behind it what is missing: time between plans, work done twice, and slower plans. Both policies pay "
        "the same for a morph, a new launcher (8 s) and a save; the paper's notices losses and plans in no "
        "time. Virtual time: nothing here was timed.\n"
    )
    yield (
        "| recording | job | morph | ours | paper | ours: moving, lost, slower | paper: moving, lost, slower "
        "| morphs |"
    )
    yield "|---|---|---|---|---|---|---|---|"


def _row(about: str, case: Case, morph_s: float, ours: Result, paper: Result) -> str:
    return (
        f"| {about} | {case.name} | {morph_s:g} s | {ours.goodput:.2%} | {paper.goodput:.2%} "
        f"| {_missing(ours)} | {_missing(paper)} | {ours.num_morphs} / {paper.num_morphs} |"
    )


def _missing(result: Result) -> str:
    return f"{result.moving_share:.2%}, {result.lost_share:.2%}, {result.slower_share:.2%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

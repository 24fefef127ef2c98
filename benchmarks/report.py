"""Cases as text for the terminal, JSON and Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import Case, Claim, Row, Spread


def markdown(
    cases: Sequence[Case],
    *,
    machine: Mapping[str, str],
    date: str,
    command: str,
    title: str = "Pipeline benchmarks",
) -> str:
    """Return the whole report."""
    lines = [f"# {title}, {date}", "", f"`{command}`", ""]
    lines += [f"- {key}: {value}" for key, value in machine.items()]
    lines += ["", *_summary(cases)]
    for case in cases:
        lines += ["", *_section(case)]
    return "\n".join(lines) + "\n"


def write(folder: Path, stem: str, cases: Sequence[Case], text: str, machine: Mapping[str, str]) -> None:
    """Write `<stem>.json` and `<stem>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.md").write_text(text)
    content = {"machine": dict(machine), "cases": [asdict(case) for case in cases]}
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")


def verdict(claim: Claim) -> str:
    """Return PASS or MISS."""
    return "PASS" if claim.is_met else "MISS"


def _summary(cases: Sequence[Case]) -> list[str]:
    lines = ["| case | claim | measured | target | |", "|---|---|---|---|---|"]
    for case in cases:
        for claim in case.claims:
            target = f"{'<=' if claim.at_most else '>='} {claim.target:.3g}"
            cells = (case.name, claim.text, _ratio(claim.value), target, verdict(claim))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _section(case: Case) -> list[str]:
    columns = list(dict.fromkeys(key for row in case.rows for key in row.shares))
    lines = [f"## {case.name}: {case.title}", "", case.settings, ""]
    if case.rows:
        lines += [
            "| | time [quartiles], rounds |" + "".join(f" {column} |" for column in columns),
            "|---|---|" + "---|" * len(columns),
            *(_line(row, columns) for row in case.rows),
        ]
    return [*lines, "", *(f"- {note}" for note in case.notes)]


def _line(row: Row, columns: Sequence[str]) -> str:
    cells = [f"{row.shares[c]:.3f}" if c in row.shares else "" for c in columns]
    return f"| {row.name} | {_seconds(row.step_s)} |" + "".join(f" {cell} |" for cell in cells)


def _seconds(spread: Spread) -> str:
    return f"{spread.median:.3f} s [{spread.low:.3f}-{spread.high:.3f}], {spread.count}"


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.3f} [{spread.low:.3f}-{spread.high:.3f}]"

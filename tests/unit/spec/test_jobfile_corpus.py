"""Every bad job file of the corpus is refused with exactly the messages written at its end (case M13)."""

import re
from pathlib import Path

import pytest

from varuna_runtime.spec.jobfile import parse

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.yaml"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_m13_a_bad_job_file_is_refused_with_line_and_advice(path: Path) -> None:
    text = path.read_text()
    expected = [line.removeprefix("#! ") for line in text.splitlines() if line.startswith("#! ")]
    found = parse(re.sub(r"(?m)^#! .*\n", "", text), source="job.yaml")
    assert isinstance(found, tuple)
    assert [str(m).removeprefix("job.yaml:") for m in found] == expected


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(CORPUS) >= 40

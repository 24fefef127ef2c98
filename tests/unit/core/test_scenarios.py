"""The scenario transcripts: readable histories with everything the core announced and wanted done."""

from pathlib import Path

import pytest

from tests.support.core_transcript import play

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_core_answers_as_in_the_transcript(path: Path) -> None:
    text = path.read_text()
    assert play(text) == text


def test_there_are_transcripts() -> None:
    assert SCENARIOS

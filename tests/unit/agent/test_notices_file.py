import json
from pathlib import Path

import pytest

from varuna_runtime.agent.notices import Cancelled, FileNotices, Notice


def test_a_deadline_is_told_once_as_time_left(tmp_path: Path) -> None:
    source = FileNotices(tmp_path / "notice.json")
    assert source.poll(100.0) is None
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_unix": 130}))
    assert source.poll(100.0) == Notice(seconds_left=30.0)
    assert source.poll(101.0) is None


def test_a_removed_file_is_a_cancelled_notice(tmp_path: Path) -> None:
    source = FileNotices(tmp_path / "notice.json")
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_unix": 130}))
    source.poll(100.0)
    (tmp_path / "notice.json").unlink()
    assert source.poll(101.0) == Cancelled()


def test_a_deadline_in_the_past_is_due_now(tmp_path: Path) -> None:
    source = FileNotices(tmp_path / "notice.json")
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_unix": 1}))
    assert source.poll(100.0) == Notice(seconds_left=0.0)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"deadline_unix": "x"}', '{"deadline_unix": NaN}']
)
def test_garbage_is_ignored_and_keeps_the_notice_there_was(tmp_path: Path, text: str) -> None:
    source = FileNotices(tmp_path / "notice.json")
    (tmp_path / "notice.json").write_text(text)
    assert source.poll(100.0) is None
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_unix": 130}))
    source.poll(100.0)
    (tmp_path / "notice.json").write_text("still " + text)
    assert source.poll(101.0) is None

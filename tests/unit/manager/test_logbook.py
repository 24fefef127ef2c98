"""Log chunks may come twice, late, or far too many."""

from pathlib import Path

import pytest

from varuna_manager.logbook import Logbook, LogFile
from varuna_manager.rpc.tail import Tail

LOG = LogFile(2, 0)


def logbook(folder: Path, limit: int = 10_000) -> Logbook:
    return Logbook(folder, max_job_bytes=limit, mask=lambda job, text: text.replace(b"secret", b"******"))


def content(book: Logbook, log: LogFile = LOG) -> bytes:
    return book.read("j", log, 0, 10_000)


def test_a_chunk_sent_twice_is_written_once(tmp_path: Path) -> None:
    book = logbook(tmp_path)
    for offset, chunk in ((0, b"one\n"), (0, b"one\n"), (2, b"e\ntwo\n")):
        book.append("j", LOG, offset, chunk)
    assert content(book) == b"one\ntwo\n"


def test_a_gap_is_marked_and_later_chunks_still_fit(tmp_path: Path) -> None:
    book = logbook(tmp_path)
    book.append("j", LOG, 0, b"one\n")
    book.append("j", LOG, 9, b"three\n")
    logbook(tmp_path).append("j", LOG, 9, b"three\nfour\n")
    assert content(book) == b"one\n\n[varuna: 5 bytes of this log were lost]\nthree\nfour\n"


def test_the_limit_of_a_job_counts_all_its_files_and_is_visible(tmp_path: Path) -> None:
    book = logbook(tmp_path, limit=10)
    book.append("j", LOG, 0, b"12345678")
    book.append("j", LogFile(2, 1), 0, b"abcd")
    book.append("j", LogFile(2, 1), 4, b"efgh")
    assert content(book) == b"12345678"
    assert content(book, LogFile(2, 1)).startswith(b"ab\n[varuna: the log limit")
    assert content(book, LogFile(2, 1)).count(b"[varuna") == 1


def test_secrets_are_masked_without_moving_offsets(tmp_path: Path) -> None:
    book = logbook(tmp_path)
    book.append("j", LOG, 0, b"a secret\n")
    book.append("j", LOG, 9, b"b\n")
    assert content(book) == b"a ******\nb\n"


def test_files_are_listed_by_generation_as_a_number_then_rank(tmp_path: Path) -> None:
    book = logbook(tmp_path)
    for log in (LogFile(10, 0), LogFile(9, 1), LogFile(9, -1)):
        book.append("j", log, 0, b"x")
    assert book.files("j") == (LogFile(9, -1), LogFile(9, 1), LogFile(10, 0))


def test_each_node_has_a_log_of_its_launcher(tmp_path: Path) -> None:
    book = Logbook(tmp_path, max_job_bytes=1000, mask=lambda job, text: text)
    for node, text in (("vm.1", b"one\n"), ("vm.2", b"two, longer\n"), ("vm.1", b"one\n")):
        book.append("j", LogFile(1, -1, node), 0, text)
    assert [(log.node, content(book, log)) for log in book.files("j")] == [
        ("vm.1", b"one\n"),
        ("vm.2", b"two, longer\n"),
    ]
    assert book.files("unknown") == ()


@pytest.mark.parametrize(("is_last", "expected"), [(False, [b"one\n"]), (True, [b"one\ntw"])])
def test_a_reader_gets_whole_lines_and_the_rest_at_the_end(
    tmp_path: Path, is_last: bool, expected: list[bytes]
) -> None:
    book = logbook(tmp_path)
    book.append("j", LOG, 0, b"one\ntw")
    tail = Tail(book, "j", None)
    assert [lines.data for lines in tail.new_lines(is_last=is_last)] == expected
    book.append("j", LOG, 6, b"o\n")
    assert b"".join(lines.data for lines in tail.new_lines(is_last=True)) == b"one\ntwo\n"[len(expected[0]) :]


def test_a_line_longer_than_a_chunk_is_not_held_back(tmp_path: Path) -> None:
    book = logbook(tmp_path, limit=2**20)
    book.append("j", LOG, 0, b"x" * 300_000 + b"\n")
    chunks = [lines.data for lines in Tail(book, "j", None).new_lines(is_last=False)]
    assert sum(map(len, chunks)) == 300_001
    assert len(chunks) == 2


def test_a_reader_of_one_rank_sees_no_other(tmp_path: Path) -> None:
    book = logbook(tmp_path)
    book.append("j", LogFile(1, 0), 0, b"zero\n")
    book.append("j", LogFile(1, 1), 0, b"one\n")
    assert [lines.data for lines in Tail(book, "j", 1).new_lines(is_last=True)] == [b"one\n"]

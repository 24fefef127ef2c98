"""Bundles: deterministic, content-addressed, and never unpacked outside their folder."""

import gzip
import hashlib
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from tests.support.bundles import upload
from varuna_runtime.spec.errors import InvalidInput, ObjectMissing
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.bundle import bundle_key, fetch


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


def workdir(root: Path) -> Path:
    for name, text in {"train.py": "print(1)", "pkg/__init__.py": "", "pkg/sub/x.txt": "x" * 1000}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o775)
    (root / "link.py").symlink_to("pkg/__init__.py")
    return root


def put_archive(store: Store, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    sha256 = hashlib.sha256(out.getvalue()).hexdigest()
    store.put(bundle_key(sha256), out.getvalue())
    return sha256


def test_files_links_and_executable_bits_come_back(store: Store, tmp_path: Path) -> None:
    bundle = upload(store, workdir(tmp_path / "work"))
    tree = fetch(store, bundle.sha256, tmp_path / "bundles")
    assert (tree / "pkg" / "sub" / "x.txt").read_text() == "x" * 1000
    assert (tree / "link.py").readlink() == Path("pkg/__init__.py")
    assert os.access(tree / "run.sh", os.X_OK)
    assert not os.access(tree / "train.py", os.X_OK)
    assert bundle.num_files == 5


def test_equal_contents_make_one_bundle(store: Store, tmp_path: Path) -> None:
    first, second = workdir(tmp_path / "a"), workdir(tmp_path / "b")
    os.utime(second / "train.py", (1, 1))
    (second / "train.py").chmod(0o600)
    assert upload(store, first) == upload(store, second)
    assert len(store.list("bundles")) == 1


def test_what_no_job_needs_is_left_out(store: Store, tmp_path: Path) -> None:
    work = workdir(tmp_path / "work")
    before = upload(store, work)
    for name in (".git/config", ".venv/bin/python", "pkg/__pycache__/x.pyc", "pkg/y.pyc", ".varuna/log"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    assert upload(store, work).sha256 == before.sha256


def test_ignore_patterns_match_names_and_paths(store: Store, tmp_path: Path) -> None:
    work = workdir(tmp_path / "work")
    (work / ".varunaignore").write_text("# comment\n\n*.ckpt\ndata/\n/pkg/sub/*\n")
    for name in ("a.ckpt", "pkg/b.ckpt", "data/big", "pkg/data/big"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    tree = fetch(store, upload(store, work).sha256, tmp_path / "bundles")
    found = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*"))
    assert found == [".varunaignore", "link.py", "pkg", "pkg/__init__.py", "run.sh", "train.py"]


def test_an_exception_in_the_ignore_file_is_refused_with_its_line(store: Store, tmp_path: Path) -> None:
    work = workdir(tmp_path / "work")
    (work / ".varunaignore").write_text("*.bin\n!keep.bin\n")
    with pytest.raises(InvalidInput, match=r"\.varunaignore:2"):
        upload(store, work)


def test_a_large_folder_is_refused_with_its_largest_files(store: Store, tmp_path: Path) -> None:
    work = workdir(tmp_path / "work")
    (work / "weights.bin").write_bytes(bytes(3 * 2**20))
    with pytest.raises(InvalidInput, match=r"more than 2 MiB, with weights\.bin \(3\.0 MiB\).*varunaignore"):
        upload(store, work, limit_bytes=2 * 2**20)


def test_a_missing_folder_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no folder"):
        upload(store, tmp_path / "none")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc", "../..", "out"])
def test_a_link_out_of_the_folder_is_refused(store: Store, tmp_path: Path, target: str) -> None:
    work = workdir(tmp_path / "work")
    (work / "pkg" / "out").symlink_to(target)
    with pytest.raises(InvalidInput, match="out of the workdir"):
        upload(store, work)


def test_a_socket_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = workdir(tmp_path / "work")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(InvalidInput, match="neither file, folder nor link"):
            upload(store, work)


def test_a_bundle_is_fetched_once(store: Store, tmp_path: Path) -> None:
    sha256 = upload(store, workdir(tmp_path / "work")).sha256
    tree = fetch(store, sha256, tmp_path / "bundles")
    store.delete([bundle_key(sha256)])
    assert fetch(store, sha256, tmp_path / "bundles") == tree


def test_an_unknown_bundle_is_missing_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing):
        fetch(store, "0" * 64, tmp_path / "bundles")
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_changed_bundle_is_refused_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    sha256 = upload(store, workdir(tmp_path / "work")).sha256
    store.put(bundle_key(sha256), store.get(bundle_key(sha256)) + b"\0")
    with pytest.raises(InvalidInput, match="SHA-256"):
        fetch(store, sha256, tmp_path / "bundles")
    assert list((tmp_path / "bundles").iterdir()) == []


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def special(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    return member, b""


@pytest.mark.parametrize(
    "members",
    [
        [(tarfile.TarInfo("../escaped"), b"x")],
        [(tarfile.TarInfo("a/../../escaped"), b"x")],
        [link("out", "/etc")],
        [link("out", ".."), (tarfile.TarInfo("out/escaped"), b"x")],
        [link("hard", "/etc/passwd", tarfile.LNKTYPE)],
        [special("device", tarfile.CHRTYPE)],
        [special("pipe", tarfile.FIFOTYPE)],
    ],
)
def test_an_archive_that_would_escape_is_refused(
    store: Store, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    sha256 = put_archive(store, *members)
    with pytest.raises(InvalidInput):
        fetch(store, sha256, tmp_path / "bundles")
    assert [path.name for path in tmp_path.rglob("*")] == ["bundles"]


def test_an_absolute_name_stays_inside(store: Store, tmp_path: Path) -> None:
    sha256 = put_archive(store, (tarfile.TarInfo(f"{tmp_path}/escaped"), b"x"))
    fetch(store, sha256, tmp_path / "bundles")
    assert not (tmp_path / "escaped").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(store: Store, tmp_path: Path) -> None:
    sha256 = put_archive(store, (tarfile.TarInfo("zeros"), bytes(2**20)))
    with pytest.raises(InvalidInput, match="more than"):
        fetch(store, sha256, tmp_path / "bundles", limit_bytes=2**20 - 1)


@pytest.mark.parametrize(
    "data", [b"", b"not gzip", gzip.compress(b"x" * 5000)[:20]], ids=["empty", "text", "cut"]
)
def test_what_is_no_archive_is_refused(store: Store, tmp_path: Path, data: bytes) -> None:
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(bundle_key(sha256), data)
    with pytest.raises(InvalidInput):
        fetch(store, sha256, tmp_path / "bundles")

"""What only a store on a file system has: leftovers, folders, permissions, URLs."""

from pathlib import Path

import pytest

from varuna_runtime.spec.errors import InvalidInput, StoreError
from varuna_runtime.store import open_store
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.urls import client_options


def test_leftovers_of_a_crashed_writer_are_no_objects(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b", b"x")
    (tmp_path / "a" / "b#123").write_bytes(b"half")
    (tmp_path / "a" / "c#99999999999999999999999999").write_bytes(b"half")
    assert store.list("") == ("a/b",)


def test_sweep_drops_leftovers_and_empty_folders(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b/c", b"x")
    for name in ("b/c#1", "empty/deep/d#2", "new/e#3"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_bytes(b"half")
    store.sweep("a", before="new")
    assert sorted(p.name for p in (tmp_path / "a").rglob("*")) == ["b", "c", "e#3", "new"]


def test_a_write_leaves_no_temporary_behind(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b", b"x")
    store.put_if_absent("a/c", b"x")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b", "c"]


def test_a_file_in_the_place_of_a_folder_is_a_store_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a", b"x")
    with pytest.raises(StoreError):
        store.put("a/b", b"x")


@pytest.mark.parametrize(
    "url", ["file://relative/path", "/plain/path", "ftp://host/x", "file:///x?y=1", "", "file://"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="store URL"):
        open_store(url)


def test_a_quoted_path_is_unquoted(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/with%20space").put("k", b"v")
    assert (tmp_path / "with space" / "k").read_bytes() == b"v"


def test_cloud_urls_open_without_a_request() -> None:
    assert open_store("s3://bucket/prefix")
    assert open_store("gs://bucket/prefix")


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hush@bucket/x", "az://container/x?sig=hush", "gs://bucket/x#hush"]
)
def test_keys_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="keys come from the environment") as refused:
        open_store(url)
    assert "hush" not in str(refused.value)


def test_a_large_upload_gets_minutes_and_the_environment_goes_first() -> None:
    assert client_options("s3", {}, is_silent=True) == {"timeout": "300 seconds"}
    assert client_options("s3", {}, is_silent=False)["read_timeout"] == "30 seconds"
    given = {"AWS_TIMEOUT": "1 hour", "AWS_ALLOW_HTTP": "true", "AZURE_PROXY_URL": "http://elsewhere"}
    assert client_options("s3", given, is_silent=True) == {"timeout": "1 hour", "allow_http": "true"}


def test_a_cloud_store_without_its_configuration_is_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="cannot open the store az://container"):
        open_store("az://container/prefix")

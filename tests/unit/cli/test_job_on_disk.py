"""Files and secrets a job refers to are checked before anything starts (case M13)."""

from pathlib import Path

import pytest

from varuna_manager.cli.job_on_disk import JobOnDisk, model_mistakes, read_job, store_mistakes
from varuna_runtime.spec.jobfile import locate
from varuna_runtime.spec.model import ModelRecord, SegmentRecord
from varuna_runtime.spec.yamlfile import Located

MINIMAL = "name: gpt\nentrypoint: train.py\nbatch_size: 32\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def told(folder: Path, text: str, environment: dict[str, str] | None = None) -> list[str]:
    (folder / "job.yaml").write_text(text)
    found = read_job(folder / "job.yaml", environment or {})
    assert not isinstance(found, JobOnDisk)
    return [str(m).removeprefix(f"{folder}/job.yaml:") for m in found]


def test_a_job_whose_files_exist_is_read(folder: Path) -> None:
    (folder / "job.yaml").write_text(MINIMAL + "secrets: [TOKEN]\n")
    job = read_job(folder / "job.yaml", {"TOKEN": "x", "OTHER": "y"})
    assert isinstance(job, JobOnDisk)
    assert job.workdir == folder.resolve()
    assert job.secrets == {"TOKEN": "x"}


def test_m13_a_missing_job_file_is_refused(folder: Path) -> None:
    (found,) = read_job(folder / "nowhere.yaml", {})  # type: ignore[misc]
    expected = "nowhere.yaml:1: seen no such file or directory, wanted a readable job file"
    assert str(found).endswith(expected)


def test_a_job_file_that_is_not_text_is_refused(folder: Path) -> None:
    (folder / "job.yaml").write_bytes(b"\xff\xfe\x00")
    (found,) = read_job(folder / "job.yaml", {})  # type: ignore[misc]
    assert found.seen == "bytes that are not UTF-8"


def test_m13_a_missing_script_is_refused_with_the_scripts_that_are_there(folder: Path) -> None:
    (found,) = told(folder, MINIMAL.replace("train.py", "tarin.py"))
    expected = (
        f"2: entrypoint: seen no such file at {folder}/tarin.py, wanted a script; that folder has train.py"
    )
    assert found == expected


def test_a_folder_as_script_is_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    (found,) = told(folder, MINIMAL.replace("train.py", "sub"))
    assert found.startswith(f"2: entrypoint: seen a folder at {folder}/sub, wanted a script")


def test_m13_a_missing_workdir_is_refused(folder: Path) -> None:
    assert told(folder, MINIMAL + "workdir: nowhere\n") == [
        f"4: workdir: seen no such folder at {folder}/nowhere, wanted a folder"
    ]


def test_a_script_that_links_out_of_the_workdir_is_refused(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").symlink_to(folder / "train.py")
    (found,) = told(folder, MINIMAL + "workdir: src\n")
    assert found.startswith(f"2: entrypoint: seen a link to {folder}/train.py, wanted a script inside")


def test_m13_missing_secrets_are_each_refused_at_their_line(folder: Path) -> None:
    text = MINIMAL + "secrets:\n  - HAVE\n  - ONE\n  - TWO\n"
    assert told(folder, text, {"HAVE": "x"}) == [
        "6: secrets[1]: seen no variable ONE in this shell, wanted the secret's value there; export ONE=...",
        "7: secrets[2]: seen no variable TWO in this shell, wanted the secret's value there; export TWO=...",
    ]


def test_more_stages_than_segments_is_refused_at_its_line() -> None:
    located = locate(MINIMAL + "layout:\n  stages: 3\n", source="job.yaml")
    assert isinstance(located, Located)
    segments = tuple(SegmentRecord(index=i, name=str(i), tensors=(), param_bytes=0) for i in range(2))
    model = ModelRecord(segments=segments, tied=(), num_samples=8, num_steps=1)
    (found,) = model_mistakes(located, model)
    assert str(found).startswith(
        'job.yaml:5: layout.stages: seen "3", wanted at most 2, the number of segments'
    )


def test_the_example_job_is_valid() -> None:
    example = Path(__file__).parents[3] / "examples" / "gpt" / "job.yaml"
    assert isinstance(read_job(example, {}), JobOnDisk)


def store_told(url: str) -> list[str]:
    located = locate(MINIMAL + f"checkpoint:\n  store: {url}\n", source="job.yaml")
    assert isinstance(located, Located)
    return [str(mistake) for mistake in store_mistakes(located)]


def test_a_folder_for_checkpoints_that_cannot_be_made_is_refused_at_its_line() -> None:
    (found,) = store_told("file:///proc/none/below")
    assert found.startswith("job.yaml:5: checkpoint.store: seen /proc/none/below, which cannot be written to")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = store_told(f"file://{tmp_path}/file/below")
    assert "not a directory" in found


def test_looking_at_the_folder_for_checkpoints_leaves_no_trace(tmp_path: Path) -> None:
    assert store_told(f"file://{tmp_path}/new/folder") == []
    assert store_told("s3://bucket/prefix") == []
    assert list(tmp_path.iterdir()) == []

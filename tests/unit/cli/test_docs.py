"""The user guide names every key of the job file and every command."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from varuna_manager.cli import root
from varuna_runtime.spec.job import JobSpec

GUIDE = Path(__file__).parents[3] / "docs" / "user-guide"


def keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in kind.model_fields.items():
        nested = field.annotation
        is_record = isinstance(nested, type) and issubclass(nested, BaseModel)
        found += keys(nested, f"{prefix}{name}.") if is_record else [f"{prefix}{name}"]
    return found


@pytest.mark.parametrize("key", keys(JobSpec))
def test_every_key_of_the_job_file_is_explained(key: str) -> None:
    assert f"`{key}`" in (GUIDE / "job-file.md").read_text()


@pytest.mark.parametrize("command", sorted(root.ENTRIES))
def test_every_command_is_explained(command: str) -> None:
    assert f"- `varuna {command}" in (GUIDE / "cli.md").read_text()

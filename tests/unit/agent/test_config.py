from pathlib import Path

import pytest

from varuna_runtime.agent.config import AgentConfig, child_environment, folders
from varuna_runtime.spec.errors import InvalidInput


def test_sockets_of_a_deep_home_get_a_short_folder() -> None:
    shallow = folders(Path("/h"), "a" * 32)
    deep = folders(Path("/" + "deep/" * 30), "a" * 32)
    assert shallow.run == Path("/h/run/aaaaaaaa")
    assert len(str(deep.run)) < 60
    assert deep.notice.name == "notice.json"


@pytest.mark.parametrize("change", [{"node": ""}, {"node": "a/b"}, {"slots": -1}, {"manager": "here"}])
def test_a_bad_config_is_refused(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"node": "n", "manager": "h:1", "home": Path("/h")}
    with pytest.raises(InvalidInput):
        AgentConfig(**(fields | change))  # type: ignore[arg-type]


def test_what_opens_the_manager_is_not_for_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARUNA_TOKEN", "t")
    monkeypatch.setenv("VARUNA_JOIN", "-")
    monkeypatch.setenv("AWS_REGION", "r")
    found = child_environment()
    assert found["AWS_REGION"] == "r"
    assert not {"VARUNA_TOKEN", "VARUNA_JOIN"} & found.keys()

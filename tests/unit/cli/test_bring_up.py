"""The command line of a manager that `varuna up` starts."""

from pathlib import Path

import pytest

from varuna_manager.cli.bring_up import manager_command
from varuna_manager.home import Home
from varuna_runtime.spec.errors import InvalidInput


def config(folder: Path, text: str) -> Path:
    (folder / "manager.yaml").write_text(text)
    return folder / "manager.yaml"


def test_without_settings_any_port_does() -> None:
    assert manager_command(Home(Path("/h")), None, None)[-3:] == ("manager", "--port", "0")
    assert manager_command(Home(Path("/h")), 7800, None)[-2:] == ("--port", "7800")


def test_settings_name_the_port_unless_one_is_given(tmp_path: Path) -> None:
    file = config(tmp_path, f"home: {tmp_path}\nport: 7800\n")
    home = Home(tmp_path)
    assert manager_command(home, None, file)[-3:] == ("manager", "--config", str(file))
    assert manager_command(home, 7801, file)[-4:] == ("--config", str(file), "--port", "7801")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1\n", "did you mean `port`"),
        ("home: /elsewhere\n", "home: seen /elsewhere, wanted"),
        (
            "pools: [{{name: a, provider: static}}]\nhome: {home}\n",
            "pools: seen static, wanted one with `provider: local`",
        ),
        ("lease_s: 0.1\n", "lease_s: seen 0.1"),
    ],
)
def test_settings_that_do_not_suit_a_local_pool_are_refused(tmp_path: Path, text: str, told: str) -> None:
    file = config(tmp_path, text.format(home=tmp_path))
    with pytest.raises(InvalidInput, match=told):
        manager_command(Home(tmp_path), None, file)

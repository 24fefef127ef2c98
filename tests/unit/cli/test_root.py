"""The command table: cheap to import, complete, and clear about mistakes."""

import importlib
import subprocess
import sys

import pytest

from varuna_manager.cli import root

HEAVY = (
    "grpc",
    "pydantic",
    "sqlalchemy",
    "torch",
    "rich",
    "ruamel.yaml",
    "obstore",
    "numpy",
    "google.protobuf",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["nonsense"],
        [],
        ["checkpoint", "--help"],
        *(["checkpoint", name, "--help"] for name in ("ls", "verify", "prune", "export", "import")),
    ],
)
def test_without_a_command_nothing_heavy_is_imported(arguments: list[str]) -> None:
    program = (
        "import sys; from varuna_manager.cli.root import run; run(sys.argv[1:]); "
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    loaded = done.stderr.splitlines()[-1]
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


def test_no_command_imports_torch_into_the_shell() -> None:
    """The script is looked at in a process of its own."""
    modules = sorted({f"varuna_manager.cli.{entry.module}" for entry in root.ENTRIES.values()})
    program = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", sorted(root.ENTRIES))
def test_every_listed_command_exists_with_the_listed_help(name: str) -> None:
    module = importlib.import_module(f"varuna_manager.cli.{root.ENTRIES[name].module}")
    command = getattr(module, name)
    assert command.help.splitlines()[0] == root.ENTRIES[name].help


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["--help"]) == root.OK
    shown = capsys.readouterr().out
    assert [name for name in root.ENTRIES if f"  {name}  " not in shown] == []


def test_a_misspelt_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["sumbit"]) == root.USAGE
    assert "no command 'sumbit'; did you mean `varuna submit`?" in capsys.readouterr().err


def test_without_a_manager_the_exit_code_says_so(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARUNA_HOME", str(tmp_path))
    monkeypatch.delenv("VARUNA_MANAGER", raising=False)
    assert root.run(["status"]) == root.NO_MANAGER
    assert f"no manager runs in {tmp_path}; start one with `varuna up`" in capsys.readouterr().err


def test_a_manager_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["nodes", "--manager", "127.0.0.1:9"]) == root.NO_MANAGER
    shown = capsys.readouterr().err
    assert "no manager answers at 127.0.0.1:9" in shown
    assert "varuna up" in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize("name", sorted(root.ENTRIES))
def test_the_help_of_every_command_ends_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run([name, "--help"]) == 0
    _, _, end = capsys.readouterr().out.rpartition("  Example")
    assert end.lstrip("s:").startswith(f"\n    varuna {name}")


def test_a_newcomer_is_told_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["--help"]) == 0
    assert "\n    varuna up -n 4\n" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["nonsense", ":7070", "host:port", "host:"])
def test_an_address_that_is_none_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["nodes", "--manager", address]) == root.REFUSED
    assert capsys.readouterr().err.startswith(f"varuna: manager: seen {address!r}, wanted HOST:PORT")


def test_a_manager_that_is_not_there_is_told_in_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["nodes", "--manager", "127.0.0.1:1"]) == root.NO_MANAGER
    told = (
        "varuna: no manager answers at 127.0.0.1:1 (connection refused); see that it runs and that its port "
        "can be reached, or start one here with `varuna up`\n"
    )
    assert capsys.readouterr().err == told

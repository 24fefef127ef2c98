"""What runs at the first boot of a machine: systemd units, cloud-init files, the install script."""

import json
import os
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.support import deploy

UNITS = ("agent", "manager")
WORDS = {
    "node": {"CLOUD", "JOIN", "DRAIN_S", "PACKAGE", "PIP_OPTIONS", "ENVIRONMENT"},
    "manager": {"MANAGER_CONFIG", "PACKAGE", "PIP_OPTIONS", "ENVIRONMENT"},
}
CLOUD_CONFIG_SCHEMA = deploy.ROOT / ".venv" / "share" / "cloud-config.schema.json"


def unit(name: str) -> str:
    return (deploy.DEPLOY / "systemd" / f"varuna-{name}.service").read_text()


def installed(name: str, folder: Path) -> str:
    """Return the path of a copy of a unit whose program exists here."""
    copy = folder / f"varuna-{name}.service"
    copy.write_text(unit(name).replace("/opt/varuna/bin/varuna", "/bin/true"))
    return str(copy)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit_without_a_word(name: str, tmp_path: Path) -> None:
    command = [deploy.tool("systemd-analyze"), "verify", "--man=no", installed(name, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "most"), [("manager", "20"), ("agent", "45")])
def test_the_unit_is_closed_as_far_as_it_can_be(name: str, most: str, tmp_path: Path) -> None:
    """In tenths of systemd's exposure level, which is 96 for a unit that says nothing."""
    command = [deploy.tool("systemd-analyze"), "security", "--offline=true", f"--threshold={most}"]
    done = subprocess.run([*command, installed(name, tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_systemd_waits_longer_than_an_agent_drains() -> None:
    stop_s = re.search(r"^TimeoutStopSec=(\d+)$", unit("agent"), re.MULTILINE)
    assert stop_s is not None
    drains = re.findall(r"DRAIN_S\W+(\d+)|drain-on-term (\d+)", _everything())
    assert len(drains) >= 3
    assert all(int(a or b) + 20 <= int(stop_s[1]) for a, b in drains)


def _everything() -> str:
    files = [path for path in deploy.DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("name", WORDS)
def test_the_words_to_fill_in_are_explained(name: str) -> None:
    text = (deploy.DEPLOY / "cloud-init" / f"{name}.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", text)) == WORDS[name]
    assert all(re.search(rf"^#   {word}  ", text, re.MULTILINE) for word in WORDS[name])


@pytest.mark.parametrize("name", WORDS)
def test_cloud_init_takes_the_file(name: str) -> None:
    if not CLOUD_CONFIG_SCHEMA.exists() and not os.environ.get("CI"):
        pytest.skip("`make cloud-config-schema` fetches the schema of cloud-init")
    values = dict.fromkeys(WORDS[name], "Zm9v")
    config = yaml.safe_load(deploy.filled_in(deploy.DEPLOY / "cloud-init" / f"{name}.yaml", **values))
    schema = json.loads(CLOUD_CONFIG_SCHEMA.read_text())
    jsonschema.Draft4Validator(schema).validate(config)
    assert config["runcmd"][-1][-1] == (
        "varuna-agent.service" if name == "node" else "varuna-manager.service"
    )


def test_the_schema_would_find_a_mistake() -> None:
    if not CLOUD_CONFIG_SCHEMA.exists() and not os.environ.get("CI"):
        pytest.skip("`make cloud-config-schema` fetches the schema of cloud-init")
    schema = json.loads(CLOUD_CONFIG_SCHEMA.read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate({"write_files": [{"contents": "no path"}]})


FAKE_PYTHON = """#!/bin/sh
# Stands in for python3, and for the programs of the environment it makes, which only note their arguments.
case $0 in
  */python3) mkdir -p "$3/bin"; cp "$0" "$3/bin/pip"; cp "$0" "$3/bin/python"; exit ;;
esac
printf '%s' "$(basename "$0")" >> LOG
printf '|%s' "$@" >> LOG
echo >> LOG
case $* in *broken*) exit 1 ;; esac
"""


def install(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run varuna-install with its folders below `folder`; return its status and the calls it made."""
    log, programs = folder / "log", folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, text in (("python3", FAKE_PYTHON.replace("LOG", str(log))), ("sleep", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = (deploy.DEPLOY / "cloud-init" / "varuna-install").read_text()
    script = script.replace("/opt/varuna", f"{folder}/opt").replace("/etc/varuna", f"{folder}/etc")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/sh", "-c", script, "varuna-install", *arguments],
        env=environment,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_a_requirement_is_installed_with_the_options(tmp_path: Path) -> None:
    found = install(tmp_path, "varuna[aws]", "--index-url", "https://index.example/simple")
    assert found == (0, ["pip|install|--index-url|https://index.example/simple|varuna[aws]"])


def test_a_wheel_in_a_store_is_fetched_with_the_machines_own_identity(tmp_path: Path) -> None:
    status, calls = install(tmp_path, "s3://bucket/wheels/varuna-1-py3-none-any.whl")
    assert status == 0
    assert calls[0] == "pip|install|obstore"
    assert calls[1].startswith("python|-c|")
    assert calls[-1] == f"pip|install|{tmp_path}/opt/varuna-1-py3-none-any.whl[aws]"


def test_an_image_that_has_it_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "opt" / "bin" / "varuna"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert install(tmp_path, "varuna") == (0, [])


def test_an_install_that_fails_is_tried_again_and_then_told(tmp_path: Path) -> None:
    status, calls = install(tmp_path, "broken")
    assert status != 0
    assert calls == ["pip|install|broken"] * 7

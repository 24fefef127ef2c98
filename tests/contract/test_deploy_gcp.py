"""The script for Google Cloud, run with a gcloud that only notes what it is asked."""

import base64
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import deploy
from varuna_manager.cloud.gcp import PERMISSIONS
from varuna_manager.config import load
from varuna_manager.pool_settings import GcpPool

SCRIPT = deploy.DEPLOY / "gcp" / "varuna.sh"
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> "$FAKE_LOG"
for each in "$@"; do
  case $each in
    --metadata-from-file=user-data=*) cp "${each#*user-data=}" "$FAKE_FILES/" ;;
  esac
done
"""


def run(folder: Path, *arguments: str, **settings: str) -> tuple[int, list[str]]:
    """Run the script; return its status and the commands it gave."""
    (folder / "gcloud").write_text(FAKE)
    (folder / "gcloud").chmod(0o755)
    log = folder / "log"
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE_LOG": str(log),
        "FAKE_FILES": str(folder),
        **settings,
    }
    done = subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, timeout=60)
    return done.returncode, log.read_text().splitlines() if log.exists() else []


SETTINGS = {"PROJECT": "mine", "ZONE": "europe-west4-a", "NODE_PRICE": "0.1", "PACKAGE": "a&b/varuna.whl"}


@pytest.mark.parametrize("path", ["gcp/varuna.sh", "cloud-init/varuna-install"])
def test_the_shell_finds_nothing_to_complain_about(path: str) -> None:
    command = [deploy.tool("shellcheck"), str(deploy.DEPLOY / path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_machines_are_born_with_their_settings(tmp_path: Path) -> None:
    status, _ = run(tmp_path, "create", **SETTINGS)
    assert status == 0
    node = yaml.safe_load((tmp_path / "node.yaml").read_text())
    [options] = [each["content"] for each in node["write_files"] if each["path"] == "/etc/varuna/agent.env"]
    assert options == (
        "VARUNA_AGENT_OPTIONS=--cloud gcp --join gs://mine-varuna-join/tickets --drain-on-term 20\n"
    )
    assert node["runcmd"][1] == "/usr/local/sbin/varuna-install 'a&b/varuna.whl' "
    wanted = deploy.filled_in(
        deploy.DEPLOY / "cloud-init" / "node.yaml",
        CLOUD="gcp",
        JOIN="gs://mine-varuna-join/tickets",
        DRAIN_S="20",
        PACKAGE="a&b/varuna.whl",
        PIP_OPTIONS="",
        ENVIRONMENT="",
    )
    assert (tmp_path / "node.yaml").read_text() == wanted


def test_nodes_are_spot_machines_that_a_preemption_deletes_and_none_runs_yet(tmp_path: Path) -> None:
    _, commands = run(tmp_path, "create", **SETTINGS)
    [template] = [each for each in commands if "instance-templates create" in each]
    assert "--provisioning-model=SPOT --instance-termination-action=DELETE" in template
    assert "--labels=varuna-cluster=varuna" in template
    [group] = [each for each in commands if "instance-groups managed create" in each]
    assert group.endswith("--size=0")


def test_nothing_listens_to_the_world(tmp_path: Path) -> None:
    _, commands = run(tmp_path, "create", **SETTINGS)
    rules = [each for each in commands if "firewall-rules create" in each]
    assert len(rules) == 3
    assert all("--target-service-accounts=" in rule for rule in rules)
    assert [r for r in rules if "--source-ranges=" in r and "--source-ranges=35.235.240.0/20" not in r] == []
    assert all("--source-ranges=" in rule or "--source-service-accounts=" in rule for rule in rules)


def test_what_create_makes_delete_takes_down_but_for_the_store(tmp_path: Path) -> None:
    made, taken = tmp_path / "made", tmp_path / "taken"
    made.mkdir()
    taken.mkdir()
    _, created = run(made, "create", **SETTINGS)
    status, deleted = run(taken, "delete", **SETTINGS)
    assert status == 0
    kinds = ("managed", "instances", "instance-templates", "subnets", "networks", "roles")
    for kind in kinds:
        made_names = {
            each.split(f"{kind} create ")[1].split()[0] for each in created if f" {kind} create " in each
        }
        gone_names = {
            each.split(f"{kind} delete ")[1].split()[0] for each in deleted if f" {kind} delete " in each
        }
        assert made_names == gone_names != set(), kind
    assert len([each for each in deleted if " service-accounts delete " in each]) == 2
    assert [each for each in deleted if "mine-varuna-store" in each] == []
    assert [each for each in deleted if "storage rm" in each] == [
        "--project=mine --quiet storage rm --recursive gs://mine-varuna-join"
    ]


def test_the_managers_role_is_what_the_provider_needs_and_no_more() -> None:
    role = yaml.safe_load((deploy.DEPLOY / "gcp" / "role-manager.yaml").read_text())
    assert role["includedPermissions"] == sorted(PERMISSIONS)


def test_the_manager_reads_its_settings(tmp_path: Path) -> None:
    run(tmp_path, "create", **SETTINGS)
    born = yaml.safe_load((tmp_path / "manager.yaml").read_text())
    [file] = [each for each in born["write_files"] if each["path"] == "/etc/varuna/manager.yaml"]
    config = tmp_path / "config.yaml"
    config.write_bytes(base64.b64decode(file["content"]))
    [pool] = load(config).pools
    assert isinstance(pool, GcpPool)
    assert (pool.group, pool.zone, pool.price) == ("varuna-node", "europe-west4-a", 0.1)


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [(["create"], "PROJECT"), (["create"], "ZONE"), (["create"], "NODE_PRICE"), ([], None), (["make"], None)],
)
def test_what_is_missing_is_told_before_anything_happens(
    arguments: list[str], missing: str | None, tmp_path: Path
) -> None:
    status, commands = run(tmp_path, *arguments, **{k: v for k, v in SETTINGS.items() if k != missing})
    assert status != 0
    assert commands == []

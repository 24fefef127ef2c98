"""Texts that deploy files carry inside have one source."""

import json

import pytest

from tests.support import deploy


@pytest.mark.parametrize("name", deploy.embed().CARRIERS)
def test_a_carrier_holds_what_its_sources_say(name: str) -> None:
    text = (deploy.DEPLOY / name).read_text()
    assert deploy.embed().embedded(text) == text, "run `python deploy/embed.py`"


@pytest.mark.parametrize("name", deploy.embed().CARRIERS)
def test_every_carrier_carries_something(name: str) -> None:
    stale = (deploy.DEPLOY / name).read_text().replace("StartLimitIntervalSec=0", "")
    assert deploy.embed().embedded(stale) != stale


def test_a_block_is_replaced_and_what_follows_stays() -> None:
    found = deploy.embed().embedded(
        "a:\n  b: |  # systemd/varuna-agent.service\n      old\n\n      old\n  c: 1\n"
    )
    unit = (deploy.DEPLOY / "systemd/varuna-agent.service").read_text().rstrip("\n").splitlines()
    body = [f"      {line}" if line else "" for line in unit]
    assert found.splitlines() == ["a:", "  b: |  # systemd/varuna-agent.service", *body, "  c: 1"]


def test_a_document_gets_its_placeholders_marked() -> None:
    found = deploy.embed().embedded("Doc:  # aws/iam-node.json\n")
    assert '"Resource": !Sub "arn:' in found
    assert '"Version": "2012-10-17"' in found


def test_a_variable_of_the_arm_template_is_one_string() -> None:
    found = deploy.embed().embedded('  "nodeCloudInit": "",\n')
    key, value = found.strip().rstrip(",").split(": ", 1)
    assert json.loads(key) == "nodeCloudInit"
    assert json.loads(value) == (deploy.DEPLOY / "cloud-init/node.yaml").read_text()

"""The CloudFormation template: linted, and created for real on an AWS endpoint on loopback."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import deploy
from tests.support.clouds.moto import REGION, Moto

TEMPLATE = deploy.DEPLOY / "aws" / "varuna.yaml"
IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
PARAMETERS = {
    "Cluster": "demo",
    "Zones": "2",
    "MaxOnDemandNodes": "2",
    "NoticesQueue": "yes",
    "NodeInstanceType2": "c6i.2xlarge",
}
GROUPS = ("demo-on-demand", "demo-spot-a", "demo-spot-b")
NOT_IN_MOTO = {"BucketPolicy", "QueuePolicy"}
"""It creates the stack without these, and ignores the groups' LifecycleHookSpecificationList."""
ACCOUNT = "123456789012"


def resources(kind: str) -> dict[str, Any]:
    found = deploy.cloudformation(TEMPLATE)["Resources"]
    return {name: each["Properties"] for name, each in found.items() if each["Type"] == kind}


def test_the_template_is_clean() -> None:
    program = Path(sys.executable).with_name("cfn-lint")
    command = [str(program), "--regions", "eu-west-1", "us-east-1", "--", str(TEMPLATE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_template_can_be_given_as_a_body() -> None:
    assert len(TEMPLATE.read_bytes()) <= 51_200


@pytest.mark.parametrize("group", ["SpotA", "SpotB", "OnDemand"])
def test_a_group_is_as_the_provider_wants_it(group: str) -> None:
    found = resources("AWS::AutoScaling::AutoScalingGroup")[group]
    assert "DesiredCapacity" not in found, "a stack update would reset it"
    assert len(found["VPCZoneIdentifier"]) == 1, "nothing to rebalance within one zone"
    assert found["NewInstancesProtectedFromScaleIn"] is True
    assert found["CapacityRebalance"] is False
    spread = found["MixedInstancesPolicy"]["InstancesDistribution"]
    assert spread.get("SpotAllocationStrategy", "price-capacity-optimized") == "price-capacity-optimized"
    assert "SpotMaxPrice" not in spread
    [hook] = found["LifecycleHookSpecificationList"]
    assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    assert hook["DefaultResult"] == "CONTINUE"
    assert {"Key": "varuna:cluster", "Value": {"Ref": "Cluster"}, "PropagateAtLaunch": True} in found["Tags"]


def test_nothing_listens_to_the_world() -> None:
    doors = resources("AWS::EC2::SecurityGroupIngress")
    assert all("SecurityGroupIngress" not in group for group in resources("AWS::EC2::SecurityGroup").values())
    by_address = {name: door["CidrIp"] for name, door in doors.items() if "CidrIp" in door}
    assert by_address == {"ClientsReachManager": {"Ref": "ClientCidr"}}
    whole = deploy.cloudformation(TEMPLATE)
    assert whole["Resources"]["ClientsReachManager"]["Condition"] == "HasClients"
    assert whole["Parameters"]["ClientCidr"]["Default"] == ""


def test_machines_ask_their_metadata_with_a_token() -> None:
    node = resources("AWS::EC2::LaunchTemplate")["NodeTemplate"]["LaunchTemplateData"]
    manager = resources("AWS::EC2::Instance")["Manager"]
    assert [each["MetadataOptions"]["HttpTokens"] for each in (node, manager)] == ["required"] * 2
    assert "InstanceMarketOptions" not in node, "the groups say spot or on demand"


def test_the_manager_is_no_stray_of_its_own_cluster() -> None:
    assert "varuna:cluster" not in {tag["Key"] for tag in resources("AWS::EC2::Instance")["Manager"]["Tags"]}


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        ssm, ec2 = server.client("ssm"), server.client("ec2")
        image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        ssm.put_parameter(Name="/image", Value=image, Type="String")
        # It looks defaults up even where a value is given, and has no Ubuntu.
        body = TEMPLATE.read_text().replace(IMAGE, "/image")
        server.client("cloudformation").create_stack(
            StackName="demo",
            TemplateBody=body,
            Capabilities=["CAPABILITY_IAM"],
            Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in PARAMETERS.items()],
        )
        yield server


def stack(moto: Moto) -> dict[str, str]:
    """Return the physical id of every resource of the stack."""
    listed = moto.client("cloudformation").list_stack_resources(StackName="demo")
    found = listed["StackResourceSummaries"]
    return {
        each["LogicalResourceId"]: each["PhysicalResourceId"]
        for each in found
        if each.get("LogicalResourceId")
    }


def manager_config(moto: Moto) -> str:
    """Return the manager.yaml that the manager's machine is born with."""
    attribute = moto.client("ec2").describe_instance_attribute(
        InstanceId=stack(moto)["Manager"], Attribute="userData"
    )
    user_data = yaml.safe_load(base64.b64decode(attribute["UserData"]["Value"]))
    [file] = [file for file in user_data["write_files"] if file["path"] == "/etc/varuna/manager.yaml"]
    return base64.b64decode(file["content"]).decode()


def test_the_stack_comes_up_whole(moto: Moto) -> None:
    wanted = set(deploy.cloudformation(TEMPLATE)["Resources"]) - NOT_IN_MOTO - {"ClientsReachManager"}
    assert set(stack(moto)) == wanted
    groups = moto.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert sorted(group["AutoScalingGroupName"] for group in groups) == sorted(GROUPS)
    assert [(group["MinSize"], group["DesiredCapacity"]) for group in groups] == [(0, 0)] * 3


def test_a_node_is_born_with_its_settings_and_no_secret(moto: Moto) -> None:
    versions = moto.client("ec2").describe_launch_template_versions(LaunchTemplateName="demo-node")
    encoded = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"]
    user_data = yaml.safe_load(base64.b64decode(encoded))
    [options] = [
        each["content"] for each in user_data["write_files"] if each["path"] == "/etc/varuna/agent.env"
    ]
    assert options == ("VARUNA_AGENT_OPTIONS=--cloud aws --join ssm:/varuna/join/demo --drain-on-term 90\n")
    assert f"AWS_REGION={REGION}" in user_data["runcmd"][0]
    assert user_data["runcmd"][1] == "/usr/local/sbin/varuna-install 'varuna[aws]' "


@pytest.mark.parametrize(
    ("role", "policy", "document"),
    [
        ("ManagerRole", "manager", "iam-manager.json"),
        ("ManagerRole", "notices", "iam-manager-notices.json"),
        ("NodeRole", "node", "iam-node.json"),
    ],
)
def test_a_role_may_do_what_its_document_says(moto: Moto, role: str, policy: str, document: str) -> None:
    made = moto.client("iam").get_role_policy(RoleName=stack(moto)[role], PolicyName=policy)
    assert made["PolicyDocument"] == statements(document, stack(moto)["Bucket"])


def statements(document: str, bucket: str) -> dict[str, Any]:
    """Return one of the IAM documents as the stack fills it in."""
    text = (deploy.DEPLOY / "aws" / document).read_text()
    values = {
        "${AWS::Partition}": "aws",
        "${AWS::Region}": REGION,
        "${AWS::AccountId}": ACCOUNT,
        "${Cluster}": "demo",
        "${Bucket}": bucket,
        "${Queue.QueueName}": "demo-notices",
    }
    for word, value in values.items():
        text = text.replace(word, value)
    found: dict[str, Any] = json.loads(text)
    return found

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
from tests.support.clouds.fault_proxy import FaultProxy
from tests.support.clouds.moto import IDENTITY, REGION, Moto, NoticesQueue
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.aws.calls import OPERATIONS, AwsCalls
from varuna_manager.cloud.aws.provider import AwsProvider
from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading
from varuna_manager.config import ManagerConfig, load
from varuna_manager.pool_settings import AwsPool
from varuna_manager.security import places
from varuna_runtime.agent import tickets

TEMPLATE = deploy.DEPLOY / "aws" / "varuna.yaml"
IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
PARAMETERS = {
    "Cluster": "demo",
    "Zones": "2",
    "MaxOnDemandNodes": "2",
    "OnDemandPrice": "0.4",
    "NoticesQueue": "yes",
    "NodeInstanceType2": "c6i.2xlarge",
    "PackageFrom": "store",
    "Package": "wheels/varuna.whl",
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
    wheel = f"s3://{stack(moto)['Bucket']}/wheels/varuna.whl"
    assert user_data["runcmd"][1] == f"/usr/local/sbin/varuna-install '{wheel}' "


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


HANDOVER = {"ssm:DeleteParameters", "ssm:PutParameter"}
STORE = {"s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"}
SESSIONS = {
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
}
"""What the machine's own agent of Systems Manager calls, so that operators come in without an open port."""


def actions(document: str) -> set[str]:
    found: set[str] = set()
    for each in statements(document, "bucket")["Statement"]:
        found |= {each["Action"]} if isinstance(each["Action"], str) else set(each["Action"])
    return found


def test_the_manager_may_do_what_it_does_and_no_more() -> None:
    allowed = actions("iam-manager.json") | actions("iam-manager-notices.json")
    assert allowed == set(OPERATIONS) | HANDOVER | STORE | SESSIONS
    assert {each for each in OPERATIONS if each.startswith("sqs:")} == actions("iam-manager-notices.json")


def test_a_node_may_fetch_tickets_and_use_the_store_and_no_more() -> None:
    assert actions("iam-node.json") == {"ssm:GetParameter"} | STORE


@pytest.mark.parametrize(
    "document", ["iam-manager.json", "iam-manager-notices.json", "iam-node.json", "iam-operator.json"]
)
def test_whatever_changes_something_is_bound_to_what_is_ours(document: str) -> None:
    for each in statements(document, "bucket")["Statement"]:
        names = [each["Action"]] if isinstance(each["Action"], str) else each["Action"]
        assert not [name for name in names if "*" in name]
        is_ours = each["Resource"] != "*"
        assert is_ours or all(":Describe" in name or name in SESSIONS for name in names)
        if any(name.startswith(("autoscaling:", "ec2:")) for name in names) and is_ours:
            assert each["Condition"] == {"StringEquals": {"aws:ResourceTag/varuna:cluster": "demo"}}


@pytest.fixture(scope="module")
def wire(moto: Moto) -> Iterator[FaultProxy]:
    """Stand between the provider and AWS, and count every call by its name."""
    with FaultProxy(moto.url) as proxy, pytest.MonkeyPatch.context() as environment:
        for name, value in {**IDENTITY, "AWS_ENDPOINT_URL": proxy.url}.items():
            environment.setenv(name, value)
        yield proxy


def settings(moto: Moto, folder: Path) -> ManagerConfig:
    (folder / "manager.yaml").write_text(manager_config(moto))
    return load(folder / "manager.yaml")


def test_the_manager_reads_its_settings(moto: Moto, tmp_path: Path) -> None:
    found = settings(moto, tmp_path)
    assert found.is_tls
    assert [(pool.name, pool.max, pool.price) for pool in found.pools] == [
        ("spot-a", 8, None),
        ("spot-b", 8, None),
        ("on-demand", 2, 0.4),
    ]
    assert found.store_url == f"s3://{stack(moto)['Bucket']}/varuna"


def living(reading: PoolReading) -> list[Instance]:
    return [each for each in reading.instances if each.phase is not InstancePhase.GONE]


@pytest.mark.parametrize("name", ["spot-a", "spot-b", "on-demand"])
def test_the_provider_lends_from_the_stacks_groups_with_what_the_role_allows(
    name: str, moto: Moto, wire: FaultProxy, tmp_path: Path
) -> None:
    [pool] = [each for each in settings(moto, tmp_path).pools if each.name == name]
    assert isinstance(pool, AwsPool)
    if pool.notices_queue:  # moto's stacks know queues by their address in AWS, its clients by its own
        pool = pool.model_copy(update={"notices_queue": NoticesQueue(moto, "demo-other").url})
    provider = AwsProvider(pool, MemoryNotes(), AwsCalls(REGION))
    wire.forget_counts()
    empty = provider.read(1.0)
    assert (living(empty), empty.desired, empty.least, empty.most) == ([], 0, 0, pool.max)
    assert empty.warnings == ()
    provider.grow(2, empty)
    two = provider.read(2.0)
    assert (len(living(two)), two.desired) == (2, 2)
    provider.release([living(two)[0].node], two)
    one = provider.read(3.0)
    assert (len(living(one)), one.desired) == (1, 1)
    assert [each for each in one.instances if each.is_stray] == []
    allowed = {each.partition(":")[2] for each in actions("iam-manager.json")}
    allowed |= {each.partition(":")[2] for each in actions("iam-manager-notices.json")}
    assert set(wire.calls()) - allowed == set()
    assert {"SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"} <= set(wire.calls())


def test_tickets_are_handed_over_with_what_the_roles_allow(moto: Moto, wire: FaultProxy) -> None:
    wire.forget_counts()
    place = places.opened("ssm:/varuna/join/demo", region=REGION)
    place.put("i-1", "the ticket")
    assert {f"ssm:{each}" for each in wire.calls()} <= actions("iam-manager.json")
    wire.forget_counts()
    assert tickets.opened(f"ssm:/varuna/join/demo?region={REGION}").read("i-1") == "the ticket"
    assert {f"ssm:{each}" for each in wire.calls()} == {"ssm:GetParameter"} <= actions("iam-node.json")
    wire.forget_counts()
    place.remove("i-1")
    assert {f"ssm:{each}" for each in wire.calls()} <= actions("iam-manager.json")


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

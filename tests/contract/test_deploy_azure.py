"""The ARM template: evaluated, and held against the models of Azure's own SDKs.

There is no emulator of Azure Resource Manager. What is checked: every expression can be evaluated and names
only what exists; every property of a compute, network, storage or vault resource is one that the SDK knows at
that place, with a legal value where the SDK has a list of them; and the rules we care about. Whether Azure
accepts the whole can only be found out there.
"""

import base64
import enum
import importlib
import json
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import arm, deploy
from varuna_manager.cloud.azure.compute import OPERATIONS
from varuna_manager.cloud.azure.machines import group_of
from varuna_manager.config import load
from varuna_manager.pool_settings import AzurePool

TEMPLATE = json.loads((deploy.DEPLOY / "azure" / "template.json").read_text())
ROLE = json.loads((deploy.DEPLOY / "azure" / "role-manager.json").read_text())
GIVEN = {"sshPublicKey": "ssh-ed25519 AAAA", "nodePrice": "0.1"}
MODELS = {
    "Microsoft.Compute/virtualMachines": ("compute", "VirtualMachine"),
    "Microsoft.Compute/virtualMachineScaleSets": ("compute", "VirtualMachineScaleSet"),
    "Microsoft.KeyVault/vaults": ("keyvault", "VaultCreateOrUpdateParameters"),
    "Microsoft.Network/networkInterfaces": ("network", "NetworkInterface"),
    "Microsoft.Network/networkSecurityGroups": ("network", "NetworkSecurityGroup"),
    "Microsoft.Network/publicIPAddresses": ("network", "PublicIPAddress"),
    "Microsoft.Network/virtualNetworks": ("network", "VirtualNetwork"),
    "Microsoft.Storage/storageAccounts": ("storage", "StorageAccountCreateParameters"),
    "Microsoft.Storage/storageAccounts/blobServices/containers": ("storage", "BlobContainer"),
}
LINKED = {
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
}
"""Azure asks these of whoever writes a scale set, for what the set refers to."""
TICKETS = {
    "Microsoft.KeyVault/vaults/secrets/delete",
    "Microsoft.KeyVault/vaults/secrets/recover/action",
    "Microsoft.KeyVault/vaults/secrets/setSecret/action",
}
"""A ticket is put and removed, and a name that was used before is recovered first; never read."""
ARM_KEYS = {"type", "apiVersion", "name", "dependsOn", "scope"}
MODES = pytest.mark.parametrize("mode", ["Flexible", "Uniform"])


def deployed(**given: object) -> list[dict[str, Any]]:
    return arm.Deployment(TEMPLATE, **{**GIVEN, **given}).resources()


def only(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    [one] = [each for each in found if each["type"] == kind]
    return one


def mistakes(value: Any, hint: Any, where: str) -> list[str]:
    """Return what the SDK's models do not know of a value."""
    choices = [each for each in typing.get_args(hint) if each is not type(None)] or [hint]
    for choice in choices:
        if isinstance(value, list) and typing.get_origin(choice) is list:
            [item] = typing.get_args(choice)
            return [each for i, one in enumerate(value) for each in mistakes(one, item, f"{where}[{i}]")]
        if isinstance(value, dict) and hasattr(choice, "__mro__") and _fields(choice):
            return _mistakes_in(value, choice, where)
        if isinstance(value, str) and isinstance(choice, type) and issubclass(choice, enum.Enum):
            legal = {each.value for each in choice}
            return [] if value in legal else [f"{where}: {value!r} is not of {sorted(legal)}"]
    return []


def _mistakes_in(value: dict[str, Any], model: type, where: str) -> list[str]:
    fields = _fields(model)
    found = [f"{where}: no {key} in {model.__name__}" for key in value if key not in fields]
    for key in value.keys() & fields.keys():
        found += mistakes(value[key], fields[key], f"{where}.{key}")
    return found


def _fields(model: type) -> dict[str, Any]:
    """Return the type of each field of a generated model, by its name in JSON."""
    found: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        package = base.__module__.removesuffix("._models")
        if not package.endswith(".models"):
            continue
        names = vars(importlib.import_module(base.__module__)) | {"_models": importlib.import_module(package)}
        hints = typing.get_type_hints(base, names)
        for attribute, field in vars(base).items():
            if hasattr(field, "_rest_name_input"):
                found[field._rest_name_input or attribute] = hints[attribute]
    return found


@MODES
def test_azures_own_models_know_every_property(mode: str) -> None:
    checked, found = 0, []
    for resource in deployed(orchestrationMode=mode, zone="1", clientCidr="192.0.2.0/24"):
        if resource["type"] in MODELS:
            library, name = MODELS[resource["type"]]
            model = getattr(importlib.import_module(f"azure.mgmt.{library}.models"), name)
            body = {key: value for key, value in resource.items() if key not in ARM_KEYS}
            found += mistakes(body, model, resource["type"])
            checked += 1
    assert (found, checked) == ([], 10)


def test_the_models_would_find_a_mistake() -> None:
    machines = only("Microsoft.Compute/virtualMachineScaleSets", deployed())
    machines["properties"]["virtualMachineProfile"]["evictionPolicy"] = "Keep"
    machines["properties"]["overProvision"] = False
    model = importlib.import_module("azure.mgmt.compute.models").VirtualMachineScaleSet
    found = mistakes({"properties": machines["properties"]}, model, "set")
    assert [each.split(":")[0] for each in found] == [
        "set.properties",
        "set.properties.virtualMachineProfile.evictionPolicy",
    ]


def test_everything_declared_is_used() -> None:
    deployment = arm.Deployment(TEMPLATE, **GIVEN, clientCidr="192.0.2.0/24")
    deployment.resources()
    deployment.outputs()
    assert set(TEMPLATE["parameters"]) | set(TEMPLATE["variables"]) == deployment.used


def test_what_a_resource_depends_on_is_in_the_template() -> None:
    found = deployed()
    ids = {_id(each) for each in found}
    assert [each for one in found for each in one.get("dependsOn", []) if each not in ids] == []


def _id(resource: dict[str, Any]) -> str:
    provider, *types = resource["type"].split("/")
    names = resource["name"].split("/")
    path = "/".join(f"{kind}/{name}" for kind, name in zip(types, names, strict=True))
    return f"{arm.GROUP}/providers/{provider}/{path}"


@MODES
def test_a_preempted_machine_is_deleted_and_nothing_is_overprovisioned(mode: str) -> None:
    machines = only("Microsoft.Compute/virtualMachineScaleSets", deployed(orchestrationMode=mode))
    profile = machines["properties"]["virtualMachineProfile"]
    assert (profile["priority"], profile["evictionPolicy"]) == ("Spot", "Delete")
    assert profile["billingProfile"] == {"maxPrice": -1}, "a bid below the regular price only adds evictions"
    assert machines["properties"].get("overprovision", False) is False
    assert ("overprovision" in machines["properties"]) == (mode == "Uniform"), "Flexible refuses the property"
    assert "spotRestorePolicy" not in machines["properties"], "Azure would race our own raise"
    assert machines["sku"]["capacity"] == 0
    assert machines["tags"] == {"varuna:cluster": "varuna"}


@MODES
def test_the_provider_has_nothing_to_say_about_the_set(mode: str) -> None:
    machines = only("Microsoft.Compute/virtualMachineScaleSets", deployed(orchestrationMode=mode))
    body = {key: value for key, value in machines.items() if key not in ARM_KEYS}
    found = group_of(importlib.import_module("azure.mgmt.compute.models").VirtualMachineScaleSet(body))
    assert found.warnings == ()
    assert (found.capacity, found.is_flexible) == (0, mode == "Flexible")


def test_a_machine_of_a_flexible_set_takes_what_it_has_with_it() -> None:
    profile = only("Microsoft.Compute/virtualMachineScaleSets", deployed())["properties"][
        "virtualMachineProfile"
    ]
    [card] = profile["networkProfile"]["networkInterfaceConfigurations"]
    [address] = card["properties"]["ipConfigurations"]
    public = address["properties"]["publicIPAddressConfiguration"]
    parts = (profile["storageProfile"]["osDisk"], card["properties"], public["properties"])
    assert [part["deleteOption"] for part in parts] == ["Delete"] * 3


def test_regular_machines_have_no_spot_settings() -> None:
    machines = only("Microsoft.Compute/virtualMachineScaleSets", deployed(nodePriority="Regular"))
    profile = machines["properties"]["virtualMachineProfile"]
    assert profile["priority"] == "Regular"
    assert not {"evictionPolicy", "billingProfile"} & set(profile)


def test_only_named_addresses_reach_a_port_from_outside() -> None:
    for given in ({}, {"clientCidr": "192.0.2.0/24"}):
        groups = [each for each in deployed(**given) if each["type"].endswith("networkSecurityGroups")]
        rules = [rule["properties"] for group in groups for rule in group["properties"]["securityRules"]]
        allowed = {rule["sourceAddressPrefix"] for rule in rules if rule["access"] == "Allow"}
        assert allowed == {"10.77.16.0/20", *given.values()}
        assert [rule["sourceAddressPrefix"] for rule in rules if rule["access"] == "Deny"] == [
            "VirtualNetwork"
        ] * 2


def test_the_store_takes_no_keys_and_shows_nothing_to_the_public() -> None:
    properties = only("Microsoft.Storage/storageAccounts", deployed())["properties"]
    assert properties["allowBlobPublicAccess"] is False
    assert properties["allowSharedKeyAccess"] is False
    assert properties["minimumTlsVersion"] == "TLS1_2"
    assert only("Microsoft.KeyVault/vaults", deployed())["properties"]["enableRbacAuthorization"] is True


def test_the_managers_role_is_what_the_provider_calls_and_no_more() -> None:
    [permissions] = only("Microsoft.Authorization/roleDefinitions", deployed())["properties"]["permissions"]
    assert (permissions["actions"], permissions["dataActions"]) == (ROLE["Actions"], ROLE["DataActions"])
    assert set(ROLE["Actions"]) == OPERATIONS | LINKED
    assert set(ROLE["DataActions"]) == TICKETS
    assert not [action for action in ROLE["Actions"] + ROLE["DataActions"] if "*" in action]


def user_data(kind: str) -> dict[str, Any]:
    properties = only(kind, deployed())["properties"]
    profile = properties.get("virtualMachineProfile", properties)["osProfile"]
    text = base64.b64decode(profile["customData"]).decode()
    assert "${" not in text.replace("dollar brackets", "")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_a_node_is_born_with_its_settings_and_no_secret() -> None:
    born = user_data("Microsoft.Compute/virtualMachineScaleSets")
    [options] = [each["content"] for each in born["write_files"] if each["path"] == "/etc/varuna/agent.env"]
    vault = f"https://{only('Microsoft.KeyVault/vaults', deployed())['name']}.vault.azure.net"
    assert options == (f"VARUNA_AGENT_OPTIONS=--cloud azure --join keyvault:{vault} --drain-on-term 20\n")
    account = only("Microsoft.Storage/storageAccounts", deployed())["name"]
    assert f"AZURE_CLIENT_ID=<clientId> AZURE_STORAGE_ACCOUNT_NAME={account} " in born["runcmd"][0]


def test_the_manager_reads_its_settings(tmp_path: Path) -> None:
    born = user_data("Microsoft.Compute/virtualMachines")
    [file] = [each for each in born["write_files"] if each["path"] == "/etc/varuna/manager.yaml"]
    (tmp_path / "manager.yaml").write_bytes(base64.b64decode(file["content"]))
    found = load(tmp_path / "manager.yaml")
    [pool] = found.pools
    assert found.is_tls
    assert isinstance(pool, AzurePool)
    assert (pool.scale_set, pool.max, pool.price) == ("varuna-node", 8, 0.1)
    vault = only("Microsoft.KeyVault/vaults", deployed())["name"]
    assert pool.handover == f"keyvault:https://{vault}.vault.azure.net"

"""The fake Azure keeps to what Azure documents, so that what is tested on it means something."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.identity import ManagedIdentityCredential
from azure.keyvault.secrets import SecretClient
from azure.mgmt.compute import ComputeManagementClient

from tests.support.clouds.azure_arm import SUBSCRIPTION
from tests.support.clouds.azure_world import Refused, Rules, ScaleSet, World, etag, scheduled_events
from tests.support.clouds.fake_azure import FakeAzure
from tests.support.pool import wait_until


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[FakeAzure]:
    with FakeAzure(tmp_path) as fake:
        yield fake


@pytest.fixture
def world() -> World:
    world = World(Rules(write_s=10.0, boot_s=5.0))
    world.advance(1000.0)
    return world


class TestWorld:
    def test_a_lower_capacity_ends_the_newest_machines(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s", capacity=3))
        world.set_capacity(scale_set, 1, None)
        world.advance(1010.0)
        assert list(scale_set.machines) == ["0"]

    def test_a_write_under_a_stale_condition_changes_nothing(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s"))
        old = etag(scale_set)
        world.set_capacity(scale_set, 1, old)
        world.advance(1010.0)
        with pytest.raises(Refused) as refused:
            world.set_capacity(scale_set, 2, old)
        assert (refused.value.status, scale_set.capacity) == (412, 1)

    def test_a_machine_boots_while_the_write_is_still_open(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s"))
        operation = world.set_capacity(scale_set, 1, None)
        world.advance(1006.0)
        assert [m.state for m in scale_set.living()] == ["running"]
        assert (operation.is_over, scale_set.state) == (False, "Updating")

    def test_deleting_by_id_lowers_the_capacity_once(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s", capacity=3))
        world.delete(scale_set, ["1"])
        with pytest.raises(Refused):
            world.delete(scale_set, ["1"])
        world.advance(1010.0)
        assert (list(scale_set.machines), scale_set.capacity) == (["0", "2"], 2)

    def test_an_event_takes_its_machine_when_its_time_has_come(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s", capacity=2))
        world.schedule(scale_set, scale_set.machines["0"], "Preempt", 30.0)
        (event,) = scheduled_events(scale_set)["Events"]  # type: ignore[misc]
        assert event["Resources"] == ["s_0"]
        assert event["NotBefore"] == "Thu, 01 Jan 1970 00:17:10 GMT"
        world.advance(1029.0)
        assert len(scale_set.machines) == 2
        world.advance(1030.0)
        assert (list(scale_set.machines), scale_set.capacity) == (["1"], 1)

    def test_an_acknowledged_event_starts_at_once_and_a_withdrawn_one_never(self, world: World) -> None:
        scale_set = world.add(ScaleSet(name="s", capacity=2))
        first = world.schedule(scale_set, scale_set.machines["0"], "Preempt", 30.0)
        second = world.schedule(scale_set, scale_set.machines["1"], "Preempt", 30.0)
        world.withdraw(scale_set, second.id)
        world.acknowledge(scale_set, [first.id], "s_0")
        world.advance(2000.0)
        assert list(scale_set.machines) == ["1"]


def client(azure: FakeAzure) -> ComputeManagementClient:
    return ComputeManagementClient(
        ManagedIdentityCredential(), SUBSCRIPTION, base_url=azure.endpoint, connection_verify=azure.ca_file
    )


def test_the_sdk_pages_and_polls_to_the_end(azure: FakeAzure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", azure.control)
    with azure.locked() as world:
        world.add(ScaleSet(name="s", capacity=1))
    with client(azure) as compute:
        sets = compute.virtual_machine_scale_sets
        done = sets.begin_update("rg", "s", {"sku": {"capacity": 5}}).result()
        assert done.sku is not None
        assert done.sku.capacity == 5
        names = [vm.name for vm in compute.virtual_machine_scale_set_vms.list("rg", "s")]
        assert names == [f"s_{n}" for n in range(5)]
        compute.virtual_machine_scale_set_vms.simulate_eviction("rg", "s", "3")
    with azure.locked() as world:
        assert [e.machine for e in world.sets["s"].events.values()] == ["s_3"]


def test_a_key_vault_keeps_secrets_for_its_own_client(
    azure: FakeAzure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", azure.control)
    with SecretClient(
        azure.endpoint,
        ManagedIdentityCredential(),
        connection_verify=str(azure.ca_file),
        verify_challenge_resource=False,
    ) as vault:
        vault.set_secret("one", "word")
        assert vault.get_secret("one").value == "word"
        vault.begin_delete_secret("one")
        with pytest.raises(ResourceNotFoundError):
            vault.get_secret("one")
    assert azure.secrets == {}


def test_as_a_process_it_is_steered_by_json_and_ends_with_its_input(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.clouds.fake_azure", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            with httpx.Client(base_url=said["control"], trust_env=False) as control:
                _steer(control)
        finally:
            process.communicate(timeout=30)  # closes its input
        assert process.returncode == 0
    assert said["environment"]["VARUNA_AZURE_ENDPOINT"].startswith("https://localhost:")


def _steer(control: httpx.Client) -> None:
    def post(act: str, /, vm: str = "", **body: object) -> dict[str, object]:
        answer = control.post(f"/ctl/{act}", params={"vm": vm}, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    def names() -> list[str]:
        return [vm["name"] for vm in control.get("/ctl/vms").json()]

    post("sets", name="s", capacity=3)
    post("rules", evict_lowers_capacity=False)
    event = post("evict", vm="s_1", notice_s=600)["event"]
    document = control.get("/ctl/scheduledevents", params={"vm": "s_0"}).json()
    assert [e["EventId"] for e in document["Events"]] == [event]
    post("scheduledevents", vm="s_1", StartRequests=[{"EventId": event}])
    wait_until(lambda: names() == ["s_0", "s_2"], "the acknowledged machine is still there")
    post("evict", vm="s_0")
    assert names() == ["s_2"]
    assert control.get("/ctl/sets").json()[0]["sku"]["capacity"] == 3
    assert control.post("/ctl/rules", json={"nonsense": 1}).status_code == 400
    assert control.get("/ctl/nonsense").status_code == 404

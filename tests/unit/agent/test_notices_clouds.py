"""What the metadata services write, and what of it is believed."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varuna_runtime.agent.identity import Identity, azure_identity, gcp_identity
from varuna_runtime.agent.notices import aws, azure, gcp, times
from varuna_runtime.agent.notices.book import Announcement
from varuna_runtime.agent.notices.watch import fit
from varuna_runtime.spec.errors import MetadataUnavailable
from varuna_runtime.wire.v1 import agent_pb2

NOW_S = 1_789_000_000.0  # 2026-09-10T00:26:40Z


def spot_text(action: str = "terminate", time: object = "2026-09-10T00:28:20Z") -> str:
    return json.dumps({"action": action, "time": time})


def document(*events: dict[str, object]) -> str:
    return json.dumps({"DocumentIncarnation": 2, "Events": events})


def event(**changes: object) -> dict[str, object]:
    return {
        "EventId": "e1",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vmss_1"],
        "EventStatus": "Scheduled",
        "NotBefore": "Thu, 10 Sep 2026 00:27:15 GMT",
    } | changes


@pytest.mark.parametrize("action", ["terminate", "stop", "something-new"])
def test_a_spot_action_leaves_until_its_time(action: str) -> None:
    (said,) = aws.spot(spot_text(action), NOW_S)
    assert said.left_s == 100.0
    assert not said.is_hint
    assert action in said.detail


def test_hibernation_begins_at_once() -> None:
    assert aws.spot(spot_text("hibernate"), NOW_S)[0].left_s == 0.0


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"action": 1}', spot_text(time=7), spot_text(time="")]
)
def test_a_spot_action_without_sense_is_no_answer(text: str) -> None:
    with pytest.raises(MetadataUnavailable):
        aws.spot(text, NOW_S)


def test_a_rebalance_recommendation_is_a_hint() -> None:
    (said,) = aws.rebalance(json.dumps({"noticeTime": "2026-09-10T00:26:40Z"}), NOW_S)
    assert said.is_hint


@pytest.mark.parametrize(
    ("code", "when", "state", "is_hint"),
    [
        ("instance-stop", "12 Sep 2026 00:00:00 GMT", "active", True),
        ("instance-stop", "10 Sep 2026 00:28:00 GMT", "active", False),
        ("system-reboot", "10 Sep 2026 00:28:00 GMT", "active", False),
        ("system-maintenance", "10 Sep 2026 00:28:00 GMT", "active", True),
        ("instance-stop", "10 Sep 2026 00:28:00 GMT", "completed", None),
        ("instance-stop", "10 Sep 2026 00:28:00 GMT", "canceled", None),
        ("instance-stop", "soon", "active", None),
    ],
)
def test_maintenance_is_a_notice_once_it_is_near(
    code: str, when: str, state: str, is_hint: bool | None
) -> None:
    text = json.dumps([{"Code": code, "NotBefore": when, "EventId": "i-1", "State": state}, 7, {}])
    said = aws.maintenance(text, NOW_S)
    assert [found.is_hint for found in said] == ([] if is_hint is None else [is_hint])
    if is_hint is False:
        assert said[0].left_s == 80.0


@pytest.mark.parametrize(
    ("state", "ends"), [("Terminated", 1), ("InService", 0), ("Warmed:Hibernated", 0), ("", 0)]
)
def test_only_the_target_terminated_ends_a_node(state: str, ends: int) -> None:
    said = aws.lifecycle(state, NOW_S)
    assert [found.is_urgent for found in said] == [True] * ends, "the group tells no time"


def test_an_empty_list_of_events_is_no_eviction() -> None:
    assert azure.events_of(document(), "vmss_1") == ()


def test_events_of_others_are_not_ours() -> None:
    text = document(
        event(Resources=["vmss_10", "vmss", "VMSS_2"]), event(Resources=[]), event(Resources=None)
    )
    assert azure.events_of(text, "vmss_1") == ()


def test_a_preemption_keeps_its_own_deadline() -> None:
    (found,) = azure.events_of(document(event(Resources=["VMSS_1"])), "vmss_1")
    assert found.is_ours_alone
    assert azure.announced(found, NOW_S).left_s == 35.0


def test_an_event_for_several_machines_is_not_ours_to_begin() -> None:
    (found,) = azure.events_of(document(event(Resources=["vmss_1", "vmss_2"])), "vmss_1")
    assert not found.is_ours_alone


def test_a_started_event_is_due_now_and_final() -> None:
    (found,) = azure.events_of(document(event(EventStatus="Started", NotBefore="")), "vmss_1")
    said = azure.announced(found, NOW_S)
    assert (said.left_s, said.is_started) == (0.0, True)


def test_a_deadline_that_cannot_be_read_is_the_least_warning_of_its_type() -> None:
    (found,) = azure.events_of(document(event(EventType="Redeploy", NotBefore="soon")), "vmss_1")
    assert azure.announced(found, NOW_S).left_s == 600.0


@pytest.mark.parametrize("kind", ["Freeze", "SomethingNew"])
def test_what_ends_nothing_is_a_hint(kind: str) -> None:
    (found,) = azure.events_of(document(event(EventType=kind)), "vmss_1")
    assert azure.announced(found, NOW_S).is_hint


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, []),
        ({"preempted": "FALSE", "maintenance-event": "NONE"}, []),
        ({"preempted": "TRUE", "maintenance-event": "NONE"}, [(30.0, False)]),
        ({"preempted": "FALSE", "maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, [(0.0, True)]),
        ({"preempted": "FALSE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}, [(60.0, False)]),
    ],
)
def test_compute_engine_says_it_in_two_values(values: dict[str, str], said: list[tuple[float, bool]]) -> None:
    assert [(found.left_s, found.is_hint) for found in gcp.announced(values)] == said


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("2026-09-10T00:26:40Z", NOW_S),
        ("2026-09-10T00:26:40", NOW_S),
        ("2026-09-10T02:26:40+02:00", NOW_S),
        ("soon", None),
        (None, None),
    ],
)
def test_iso_times(text: object, unix_s: float | None) -> None:
    assert times.iso(text) == unix_s


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("Thu, 10 Sep 2026 00:26:40 GMT", NOW_S),
        ("10 Sep 2026 00:26:40 GMT", NOW_S),
        ("", None),
        ("soon", None),
        (7, None),
    ],
)
def test_rfc1123_times(text: object, unix_s: float | None) -> None:
    assert times.rfc1123(text) == unix_s


def test_an_azure_machine_goes_by_its_vm_name() -> None:
    compute = {"name": "vmss_1", "vmSize": "NC6", "zone": "1", "priority": "Spot"}
    network = {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.4"}]}}]}
    found = azure_identity(json.dumps({"compute": compute, "network": network}))
    assert found == Identity(node="vmss_1", host="10.0.0.4", zone="1", kind="NC6", market="spot")


def test_a_compute_engine_machine_goes_by_its_name() -> None:
    value = {
        "name": "pool-1",
        "zone": "projects/1/zones/us-central1-a",
        "machineType": "projects/1/machineTypes/n1-standard-8",
        "networkInterfaces": [{"ip": "10.0.0.5"}],
        "scheduling": {"preemptible": "FALSE"},
    }
    assert gcp_identity(json.dumps(value)) == Identity(
        node="pool-1", host="10.0.0.5", zone="us-central1-a", kind="n1-standard-8", market="on-demand"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_values = json_values | st.sampled_from(
    [
        "terminate",
        "2026-09-10T00:28:20Z",
        "Thu, 10 Sep 2026 00:27:15 GMT",
        "0000-00-00",
        "1 Jan 0001 0:0:0 +9999",
    ]
)
objects = st.dictionaries(
    st.sampled_from(
        ["action", "time", "noticeTime", "Code", "EventId", "NotBefore", "State", "EventType", "EventStatus"]
    ),
    field_values,
)
named_objects = objects.map(lambda value: value | {"Resources": ["vmss_1"]})
texts = (
    st.text()
    | json_values.map(json.dumps)
    | objects.map(json.dumps)
    | st.lists(objects).map(json.dumps)
    | st.lists(named_objects | json_values).map(lambda found: json.dumps({"Events": found}))
    | st.just("[" * 100_000)
    | st.just('{"action": "terminate", "time": ' + "9" * 5000 + "}")
)


def azure_all(text: str, unix_s: float) -> tuple[Announcement, ...]:
    return tuple(azure.announced(found, unix_s) for found in azure.events_of(text, "vmss_1"))


def gcp_all(text: str, unix_s: float) -> tuple[Announcement, ...]:
    return gcp.announced({path: gcp.value_of(path, text) for path in (gcp.PREEMPTED, gcp.MAINTENANCE)})


@pytest.mark.parametrize(
    "read",
    [aws.spot, aws.rebalance, aws.maintenance, aws.lifecycle, azure_all, gcp_all],
    ids=lambda f: f.__name__,
)
@settings(deadline=None, max_examples=50)
@given(text=texts)
def test_garbage_is_refused_or_read_and_never_more(
    read: Callable[[str, float], tuple[Announcement, ...]], text: str
) -> None:
    try:
        said = read(text, NOW_S)
    except MetadataUnavailable:
        return
    assert all(isinstance(found.left_s, float) and found.left_s == found.left_s for found in said)


@pytest.mark.parametrize("read", [azure_identity, gcp_identity, azure.vm_of])
@settings(deadline=None, max_examples=50)
@given(text=texts)
def test_garbage_gives_no_identity(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(MetadataUnavailable):
        read(text)


def test_what_a_cloud_wrote_fits_on_the_wire() -> None:
    detail = fit("half \ud800 a\ncharacter \x00" + "x" * 1000)
    assert detail.startswith("half ? a?character ?xxx")
    assert len(detail) == 300
    assert agent_pb2.NoticeReport(detail=detail).SerializeToString()

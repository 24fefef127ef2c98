"""Outgoing queues are bounded, and acknowledgements are about what is journaled."""

import asyncio

from varuna_manager.links import Link, Links
from varuna_runtime.wire.v1 import agent_pb2

DRAIN = agent_pb2.ManagerMessage(drain=agent_pb2.Drain(job="j", generation=1))


def taken(link: Link) -> list[agent_pb2.ManagerMessage]:
    return asyncio.run(link.outgoing())


def test_messages_leave_in_order_and_acknowledgements_are_merged() -> None:
    link = Link("n", "i")
    link.send(DRAIN)
    link.acknowledge(3)
    link.acknowledge(7)
    link.acknowledge(5)
    first, second = taken(link)
    assert first == DRAIN
    assert second.ack.seq == 7


def test_an_acknowledgement_is_sent_once_unless_asked_again() -> None:
    link = Link("n", "i")
    link.acknowledge(7)
    taken(link)
    link.send(DRAIN)
    assert taken(link) == [DRAIN]
    link.acknowledge_again(4)
    assert [m.ack.seq for m in taken(link)] == [7]


def test_an_agent_that_does_not_read_is_dropped_by_number() -> None:
    link = Link("n", "i", max_messages=2)
    for _ in range(3):
        link.send(DRAIN)
    assert link.ended.is_set()
    assert "does not read: 3 messages" in link.end_reason


def test_an_agent_that_does_not_read_is_dropped_by_size() -> None:
    link = Link("n", "i", max_bytes=100)
    link.send(agent_pb2.ManagerMessage(start=agent_pb2.Start(plan_json=b"x" * 101)))
    assert link.ended.is_set()


def test_the_first_reason_of_an_end_counts() -> None:
    link = Link("n", "i")
    link.end("one")
    link.end("two")
    assert link.end_reason == "one"


def test_a_newer_link_takes_the_place_and_the_older_cannot_remove_it() -> None:
    links, old, new = Links(), Link("n", "i"), Link("n", "i")
    links.attach(old)
    links.attach(new)
    assert old.ended.is_set()
    assert not links.detach(old)
    links.send("n", "i", DRAIN)
    assert taken(new) == [DRAIN]
    assert links.detach(new)


def test_a_message_for_an_agent_that_is_not_connected_is_dropped() -> None:
    links, other = Links(), Link("n", "another")
    links.attach(other)
    links.send("n", "i", DRAIN)
    other.send(agent_pb2.ManagerMessage())
    assert DRAIN not in taken(other)


def test_a_report_journaled_after_a_reconnect_is_acknowledged_on_the_new_stream() -> None:
    links, old, new = Links(), Link("n", "i"), Link("n", "i")
    links.attach(old)
    links.attach(new)
    links.commit(old, 4)
    assert [m.ack.seq for m in taken(new)] == [4]
    assert [links.committed(x) for x in (new, Link("n", "j"), Link("other", "i"))] == [4, 0, 0]

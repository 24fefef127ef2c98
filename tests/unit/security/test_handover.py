"""Which tickets are put where machines look for them, and which are taken away."""

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.unit.security.test_tokens import Office
from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading
from varuna_manager.security.handover import HandOver, HandOverFailed, todo
from varuna_manager.security.ledger import TokenState
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.tickets import join_ticket


def reading(**phases: InstancePhase) -> PoolReading:
    found = tuple(Instance(node=node, phase=phase) for node, phase in sorted(phases.items()))
    return PoolReading(instances=found, desired=len(found), least=0, most=9)


class Shelf:
    """A place in memory, which may be out of order."""

    def __init__(self) -> None:
        self.tickets: dict[str, str] = {}
        self.is_broken = False

    def put(self, node: str, ticket: str) -> None:
        if self.is_broken:
            raise HandOverFailed("out of order")
        self.tickets[node] = ticket

    def remove(self, node: str) -> None:
        if self.is_broken:
            raise HandOverFailed("out of order")
        self.tickets.pop(node, None)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.office = Office(folder)
        self.shelf = Shelf()
        self.restart()

    def restart(self) -> None:
        self.handover = HandOver("spot", self.shelf, self.office.desk)

    async def see(self, joined: frozenset[str] = frozenset(), **phases: InstancePhase) -> None:
        await self.handover.on_reading(reading(**phases), joined, self.office.now_s)

    async def join(self, node: str) -> None:
        ticket = join_ticket(self.shelf.tickets[node])
        await self.office.desk.joined(ticket.id, ticket.secret, node, request_for(new_key()))


UP, BOOTING, GONE = InstancePhase.RUNNING, InstancePhase.STARTING, InstancePhase.GONE


def test_each_machine_that_has_not_joined_finds_a_ticket_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.see(a=UP, b=BOOTING, c=GONE, d=InstancePhase.LEAVING, e=InstancePhase.STOPPED)
        assert {n: join_ticket(t).node for n, t in scene.shelf.tickets.items()} == {"a": "a", "b": "b"}
        before = dict(scene.shelf.tickets)
        await scene.see(a=UP, b=UP)
        assert scene.shelf.tickets == before

    asyncio.run(scenario())


def test_a_spent_ticket_stays_until_its_node_is_seen_then_it_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.see(a=UP)
        await scene.join("a")
        await scene.see(a=UP)
        assert "a" in scene.shelf.tickets
        await scene.see(joined=frozenset({"a"}), a=UP)
        assert scene.shelf.tickets == {}
        assert scene.office.tokens.all() == ()

    asyncio.run(scenario())


def test_an_expired_ticket_is_replaced_and_that_of_a_gone_machine_taken_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.see(a=UP, b=UP)
        first = scene.shelf.tickets["a"]
        scene.office.now_s += 16 * 60
        await scene.see(a=UP, b=GONE)
        assert set(scene.shelf.tickets) == {"a"}
        assert scene.shelf.tickets["a"] != first
        (record,) = scene.office.tokens.all()
        assert scene.office.tokens.state(record) is TokenState.VALID
        await scene.see()
        assert scene.shelf.tickets == {}

    asyncio.run(scenario())


def test_a_place_out_of_order_is_asked_again_with_a_fresh_ticket(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        scene.shelf.is_broken = True
        await scene.see(a=UP)
        assert scene.shelf.tickets == {}
        scene.shelf.is_broken = False
        await scene.see(a=UP)
        await scene.join("a")
        assert len(scene.office.tokens.all()) == 1

    asyncio.run(scenario())


def test_what_could_not_be_taken_away_is_still_on_record_and_goes_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.see(a=UP)
        scene.shelf.is_broken = True
        await scene.see()
        assert set(scene.shelf.tickets) == {"a"}
        scene.shelf.is_broken = False
        scene.restart()
        await scene.see()
        assert scene.shelf.tickets == {}

    asyncio.run(scenario())


def test_after_a_restart_of_the_manager_a_ticket_of_unknown_fate_is_made_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.see(a=UP, b=UP)
        await scene.join("b")
        old = dict(scene.shelf.tickets)
        scene.restart()
        await scene.see(a=UP, b=UP)
        assert scene.shelf.tickets["a"] != old["a"]
        assert scene.shelf.tickets["b"] == old["b"]  # spent: its reply may be on the way
        assert len(scene.office.tokens.all()) == 2

    asyncio.run(scenario())


def test_tickets_of_people_and_of_other_pools_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.office.desk.ticket("x", created_by="admin")
        await scene.office.desk.ticket("y", created_by="pool other")
        await scene.see()
        assert len(scene.office.tokens.all()) == 2

    asyncio.run(scenario())


def test_a_revoked_ticket_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        office = Office(tmp_path)
        token, _ = await office.desk.ticket("a", created_by="pool spot")
        revoked = replace(token, revoked_at_s=office.now_s)
        plan = todo(reading(a=UP), joined=set(), known=[revoked], placed={token.id}, now_s=office.now_s)
        assert (plan.mint, plan.drop) == (("a",), (revoked,))

    asyncio.run(scenario())

"""Notices of Azure: the Scheduled Events that name this virtual machine.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import structlog

from varuna_runtime.agent.metadata import Metadata, expect_ok, in_brief, json_of
from varuna_runtime.agent.notices import polling, times
from varuna_runtime.agent.notices.book import Announcement
from varuna_runtime.agent.notices.changes import Change, Notice
from varuna_runtime.agent.notices.health import Health, pause_s
from varuna_runtime.spec.errors import MetadataUnavailable

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
COMPUTE = "/metadata/instance/compute?api-version=2021-02-01&format=json"
HEADERS = {"Metadata": "true"}
_ENABLING_S = 150.0  # the first question switches the service on, which may take two minutes
_WITHIN_S = 5.0
_CAP_S = 5.0
_LEAST_S = {"Preempt": 30.0, "Terminate": 300.0, "Redeploy": 600.0, "Reboot": 900.0}
"""Types that end what runs on the machine, and the warning that Azure promises for each, in seconds."""
_log = structlog.get_logger("varuna.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One scheduled event that names this machine."""

    id: str
    type: str
    not_before: str  # empty once started
    is_started: bool
    is_ours_alone: bool  # to acknowledge it decides about no other machine


def vm_of(text: str) -> str:
    """Return the machine's name, by which events mean it; raises MetadataUnavailable."""
    value = json_of(text, COMPUTE)
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        raise MetadataUnavailable(f"{COMPUTE} gave {in_brief(text)}, wanted a name")
    return name


def events_of(text: str, vm: str) -> tuple[Event, ...]:
    """Return the events of a document that name `vm`; raises MetadataUnavailable if it is no document."""
    value = json_of(text, "scheduledevents")
    found = value.get("Events") if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise MetadataUnavailable(f"scheduledevents gave {in_brief(text)}, wanted Events")
    return tuple(event for item in found if (event := _event(item, vm)) is not None)


def _event(item: object, vm: str) -> Event | None:
    if not isinstance(item, dict):
        return None
    resources, id = item.get("Resources"), item.get("EventId")
    if not isinstance(resources, list) or not isinstance(id, str) or not id:
        return None
    names = [str(name).casefold() for name in resources]
    if vm.casefold() not in names:
        return None
    return Event(
        id=id,
        type=str(item.get("EventType", ""))[:40],
        not_before=str(item.get("NotBefore") or "")[:60],
        is_started=item.get("EventStatus") == "Started",
        is_ours_alone=set(names) == {vm.casefold()},
    )


def announced(event: Event, unix_s: float) -> Announcement:
    """Return what an event means for this node."""
    least_s = _LEAST_S.get(event.type)
    when = "started" if event.is_started else f"not before {event.not_before or 'an unknown time'}"
    detail = f"{event.type} {when}"
    if least_s is None:
        return Announcement(id=event.id, detail=detail, is_hint=True)
    at_s = times.rfc1123(event.not_before)
    left_s = least_s if at_s is None else at_s - unix_s
    return Announcement(
        id=event.id,
        detail=detail,
        left_s=0.0 if event.is_started else left_s,
        stamp=f"{event.is_started} {at_s}",
        is_started=event.is_started,
    )


class AzureNotices:
    """Polls Scheduled Events every second, and lets those of this node alone begin once it is empty."""

    name = "azure"
    ends_node = False

    def __init__(self, endpoint: str, *, every_s: float = 1.0) -> None:
        self._service = Metadata(endpoint)
        self._every_s = every_s
        self._health = Health(self.name)
        self._vm = ""
        self._is_enabled = False
        self._events: dict[str, Event] = {}

    def changes(self) -> AsyncGenerator[Change, None]:
        """Yield each change, for ever."""
        return polling.changes(
            self._look, self._service.close, self._health, every_s=self._every_s, cap_s=_CAP_S
        )

    async def acknowledge(self, notice: Notice) -> None:
        """Have the event begin; asked again until the service agrees or the event is no longer there."""
        num_failures = 0
        while (event := self._events.get(notice.id)) is not None and not event.is_started:
            if not event.is_ours_alone:
                _log.info("not acknowledged: it names other machines too", event_id=event.id)
                return
            try:
                await self._start(event)
                return
            except MetadataUnavailable as err:
                num_failures += 1
                _log.warning("acknowledgement failed", event_id=event.id, reason=str(err))
            await asyncio.sleep(pause_s(num_failures, self._every_s, _CAP_S))

    async def _start(self, event: Event) -> None:
        body = {"StartRequests": [{"EventId": event.id}]}
        answer = await self._service.ask(EVENTS, HEADERS, method="POST", body=body, within_s=_WITHIN_S)
        expect_ok(answer, "POST /metadata/scheduledevents")
        _log.info("acknowledged", event_id=event.id, type=event.type)

    async def _look(self) -> Sequence[Announcement]:
        if not self._vm:
            self._vm = vm_of(expect_ok(await self._service.ask(COMPUTE, HEADERS), "GET " + COMPUTE).text)
        # A service that was silent for long may have to be switched on anew.
        is_patient = not self._is_enabled or self._health.num_failures >= 3
        within_s = _ENABLING_S if is_patient else _WITHIN_S
        answer = await self._service.ask(EVENTS, HEADERS, within_s=within_s)
        events = events_of(expect_ok(answer, "GET /metadata/scheduledevents").text, self._vm)
        self._is_enabled = True
        self._events = {event.id: event for event in events}
        return [announced(event, answer.unix_s) for event in events]

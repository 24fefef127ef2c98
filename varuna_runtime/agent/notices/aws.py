"""Notices of EC2: spot interruptions, the Auto Scaling group's own ends, maintenance.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import structlog

from varuna_runtime.agent.metadata import AwsMetadata, in_brief, json_of
from varuna_runtime.agent.notices import polling, times
from varuna_runtime.agent.notices.book import Announcement
from varuna_runtime.agent.notices.changes import Change, Notice
from varuna_runtime.agent.notices.health import Health
from varuna_runtime.spec.errors import MetadataUnavailable

SPOT = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"
MAINTENANCE = "meta-data/events/maintenance/scheduled"
LIFECYCLE = "meta-data/autoscaling/target-lifecycle-state"
_SPOT_S = 120.0
_HOOKED_S = 60.0  # the group gives no time; the manager knows that of its lifecycle hook
_NEAR_S = 300.0
_LEFTOVER_S = 300.0  # EC2 may fail to end an instance; then the past time stays
_CAP_S = 10.0
_log = structlog.get_logger("varuna.agent")


def spot(text: str, unix_s: float) -> tuple[Announcement, ...]:
    """Read an instance action; raises MetadataUnavailable if it makes no sense."""
    value = json_of(text, SPOT)
    action, time = (value.get("action"), value.get("time")) if isinstance(value, dict) else (None, None)
    at_s = times.iso(time)
    if not isinstance(action, str) or at_s is None:
        raise MetadataUnavailable(f"{SPOT} gave {in_brief(text)}, wanted an action and a time")
    return (
        Announcement(
            id="spot",
            detail=f"spot interruption: {action[:20]} at {time}",
            left_s=0.0 if action == "hibernate" else at_s - unix_s,  # hibernation begins at once
            most_s=_SPOT_S,
            stamp=f"{action} {at_s}",
            believed_s=_LEFTOVER_S,
        ),
    )


def rebalance(text: str, unix_s: float) -> tuple[Announcement, ...]:
    """Read a rebalance recommendation: more risk than usual, no end."""
    value = json_of(text, REBALANCE)
    time = value.get("noticeTime") if isinstance(value, dict) else None
    if times.iso(time) is None:
        raise MetadataUnavailable(f"{REBALANCE} gave {in_brief(text)}, wanted a noticeTime")
    return (Announcement(id=f"rebalance {time}", detail=f"rebalance recommendation of {time}", is_hint=True),)


def maintenance(text: str, unix_s: float) -> tuple[Announcement, ...]:
    """Read the scheduled events; one that ends or restarts the instance is a notice once it is near."""
    value = json_of(text, MAINTENANCE)
    if not isinstance(value, list):
        raise MetadataUnavailable(f"{MAINTENANCE} gave {in_brief(text)}, wanted a list")
    return tuple(said for event in value if (said := _scheduled(event, unix_s)) is not None)


def _scheduled(event: object, unix_s: float) -> Announcement | None:
    if not isinstance(event, dict) or event.get("State", "active") != "active":
        return None
    code, not_before = str(event.get("Code", ""))[:40], event.get("NotBefore")
    at_s = times.rfc1123(not_before)
    if not code or at_s is None:
        return None
    id = f"maintenance {event.get('EventId') or code}"[:80]
    detail = f"{code} not before {not_before}"
    if at_s - unix_s > _NEAR_S or code == "system-maintenance":
        return Announcement(id=f"hint of {id}", detail=detail, is_hint=True)
    return Announcement(
        id=id, detail=detail, left_s=at_s - unix_s, stamp=str(at_s), most_s=_NEAR_S, believed_s=_LEFTOVER_S
    )


def lifecycle(text: str, unix_s: float) -> tuple[Announcement, ...]:
    """Read the target state; every other than Terminated, unknown ones too, means nothing to us."""
    if text.strip() != "Terminated":
        return ()
    detail = "the Auto Scaling group ends the instance"
    return (Announcement(id="lifecycle", detail=detail, left_s=_HOOKED_S, is_urgent=True),)


_READERS = {SPOT: spot, REBALANCE: rebalance, MAINTENANCE: maintenance, LIFECYCLE: lifecycle}


class AwsNotices:
    """Polls the instance metadata service every two seconds."""

    name = "aws"
    ends_node = False

    def __init__(self, endpoint: str, *, every_s: float = 2.0) -> None:
        self._service = AwsMetadata(endpoint)
        self._every_s = every_s
        self._said: dict[str, tuple[Announcement, ...]] = {}
        self._failing: set[str] = set()

    def changes(self) -> AsyncGenerator[Change, None]:
        """Yield each change, for ever."""
        health = Health(self.name)
        return polling.changes(self._look, self._service.close, health, every_s=self._every_s, cap_s=_CAP_S)

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: EC2 waits for nobody. A lifecycle hook is the manager's to complete."""

    async def _look(self) -> Sequence[Announcement]:
        """The spot action alone decides whether the source is well; without one the rest is asked for."""
        await self._ask(SPOT)
        if not self._said[SPOT]:
            await asyncio.gather(*(self._try(path) for path in (REBALANCE, MAINTENANCE, LIFECYCLE)))
        return [said for _, found in sorted(self._said.items()) for said in found]

    async def _ask(self, path: str) -> None:
        answer = await self._service.get(path)
        self._said[path] = () if answer is None else _READERS[path](answer.text, answer.unix_s)

    async def _try(self, path: str) -> None:
        """Ask for one of the rest; while it fails, what it said last holds."""
        try:
            await self._ask(path)
            self._failing.discard(path)
        except MetadataUnavailable as err:
            if path not in self._failing:
                _log.warning("metadata path ignored", path=path, reason=str(err))
            self._failing.add(path)

"""Notices of Compute Engine: preemption and host maintenance, by questions that wait for a change.

https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote

from varuna_runtime.agent import clock
from varuna_runtime.agent.metadata import Answer, Metadata, expect_ok, in_brief
from varuna_runtime.agent.notices import polling
from varuna_runtime.agent.notices.book import Announcement
from varuna_runtime.agent.notices.changes import Change, Notice
from varuna_runtime.agent.notices.health import Health, pause_s
from varuna_runtime.spec.errors import MetadataUnavailable

ROOT = "/computeMetadata/v1/instance/"
HEADERS = {"Metadata-Flavor": "Google"}
PREEMPTED, MAINTENANCE = "preempted", "maintenance-event"
_PREEMPTED_S = 30.0
_MAINTENANCE_S = 60.0  # the least warning; machines with GPUs get an hour
_WAIT_S = 10  # a question that is lost on the way must not cost all of the warning
_SLACK_S = 3.0
_CAP_S = 5.0


def announced(values: dict[str, str]) -> tuple[Announcement, ...]:
    """Return what the two values mean for this node."""
    found = []
    if values.get(PREEMPTED) == "TRUE":
        found.append(Announcement(id=PREEMPTED, detail="preempted", left_s=_PREEMPTED_S))
    event = values.get(MAINTENANCE, "NONE")
    if event.startswith("TERMINATE"):
        found.append(Announcement(id=event, detail=event, left_s=_MAINTENANCE_S))
    elif event != "NONE":
        found.append(Announcement(id=event, detail=event, is_hint=True))
    return tuple(found)


def value_of(path: str, text: str) -> str:
    """Return a word such as TRUE or NONE; raises MetadataUnavailable."""
    word = text.strip()
    wanted = r"TRUE|FALSE" if path == PREEMPTED else r"[A-Z][A-Z_]{0,60}"
    if re.fullmatch(wanted, word) is None:
        raise MetadataUnavailable(f"{ROOT}{path} gave {in_brief(text)}, wanted {wanted}")
    return word


def of_google(answer: Answer, path: str) -> Answer:
    """Return the answer if the metadata service gave it; raises MetadataUnavailable."""
    expect_ok(answer, f"GET {ROOT}{path}")
    if answer.headers.get("metadata-flavor") != "Google":
        raise MetadataUnavailable(f"GET {ROOT}{path} was not answered by the metadata service")
    return answer


class _Followed:
    """One value, and the tag of the version that was seen of it."""

    def __init__(self, path: str, every_s: float) -> None:
        self._path = path
        self._every_s = every_s  # no oftener, though every question were answered at once
        self._etag = ""
        self._num_failures = 0
        self._asked_at_s = -_CAP_S

    async def next(self, service: Metadata) -> str:
        """Return the value: at once the first time and after a failure, else once it changes."""
        pause = pause_s(self._num_failures, self._every_s, _CAP_S)
        await asyncio.sleep(max(0.0, self._asked_at_s + pause - clock.now_s()))
        self._asked_at_s = clock.now_s()
        try:
            answer = of_google(await self._ask(service), self._path)
            value = value_of(self._path, answer.text)
        except MetadataUnavailable:
            self._etag = ""
            self._num_failures += 1
            raise
        self._num_failures = 0
        self._etag = answer.headers.get("etag", "")
        return value

    async def _ask(self, service: Metadata) -> Answer:
        path = ROOT + self._path
        if not self._etag:
            return await service.ask(path, HEADERS)
        query = f"?wait_for_change=true&timeout_sec={_WAIT_S}&last_etag={quote(self._etag, safe='')}"
        return await service.ask(path + query, HEADERS, within_s=_WAIT_S + _SLACK_S)


class GcpNotices:
    """Waits on the metadata service for changes."""

    name = "gcp"
    ends_node = False

    def __init__(self, endpoint: str, *, every_s: float = 1.0) -> None:
        self._service = Metadata(endpoint)
        self._followed = {path: _Followed(path, every_s) for path in (PREEMPTED, MAINTENANCE)}
        self._pending: dict[str, asyncio.Task[str]] = {}
        self._values: dict[str, str] = {}
        self._is_well = False  # `preempted` was answered when it was last asked

    def changes(self) -> AsyncGenerator[Change, None]:
        """Yield each change, for ever."""
        # Each value keeps its own pace.
        return polling.changes(self._look, self._close, Health(self.name), every_s=0.0, cap_s=0.0)

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: Compute Engine waits for nobody."""

    async def _look(self) -> Sequence[Announcement]:
        """Wait for the next answer; only `preempted` decides whether the source is well."""
        while True:
            for path, followed in self._followed.items():
                if path not in self._pending:
                    self._pending[path] = asyncio.create_task(followed.next(self._service))
            await asyncio.wait(self._pending.values(), return_when=asyncio.FIRST_COMPLETED)
            if self._take():
                return announced(self._values)

    def _take(self) -> bool:
        """Return whether something was learned; raises MetadataUnavailable when `preempted` failed."""
        is_news = False
        for path in [path for path, task in self._pending.items() if task.done()]:
            task = self._pending.pop(path)
            try:
                self._values[path] = task.result()
            except MetadataUnavailable:
                if path == PREEMPTED:
                    self._is_well = False
                    raise
                continue  # what it said last holds
            self._is_well |= path == PREEMPTED
            is_news = True
        return is_news and self._is_well

    async def _close(self) -> None:
        for task in self._pending.values():
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        await self._service.close()

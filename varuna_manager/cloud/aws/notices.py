"""Interruption warnings that EventBridge puts into an SQS queue: at least once, in any order."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.times import Times
from varuna_manager.cloud.provider import ProviderError

if TYPE_CHECKING:
    from collections.abc import Set

    from varuna_manager.cloud.aws.calls import AwsCalls
    from varuna_manager.cloud.opening import Notes

_WARNING = "EC2 Spot Instance Interruption Warning"
_NOTICE_S = {"hibernate": 0.0}  # hibernation begins with the warning
_USUAL_NOTICE_S = 120.0
_STALE_S = 600.0
"""A warning outlives its end by so much: what still runs then was not interrupted after all."""
_FOREIGN_S = 300.0
"""A warning about a machine that we do not know stays so long for another pool that reads the same queue."""
_MOST_BATCHES = 10  # per reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One warning: when it was given and when the machine ends, in Unix seconds."""

    node: str
    given_at_s: float
    ends_at_s: float


def parse(body: str) -> Notice | None:
    """Return the warning in a message; None for any other event. ValueError: it is no event at all."""
    try:
        event = json.loads(body)
        kind, detail, time = event["detail-type"], event["detail"], event["time"]
        if kind != _WARNING:
            return None
        given_at_s = datetime.fromisoformat(time).timestamp()
        notice_s = _NOTICE_S.get(detail.get("instance-action", ""), _USUAL_NOTICE_S)
        return Notice(node=str(detail["instance-id"]), given_at_s=given_at_s, ends_at_s=given_at_s + notice_s)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"no event of EventBridge ({err!r})") from err


class Notices:
    """The warnings known now, kept over a restart: their messages are gone by then.

    A message is deleted only after a reading that held it was handed over.
    """

    def __init__(self, calls: "AwsCalls", queue: str, notes: "Notes") -> None:
        self._calls = calls
        self._queue = queue
        self._ends_at_s = Times(notes, "interruptions")
        self._told: list[str] = []  # receipts of what the last reading held

    def ends_at_s(self, node: str) -> float | None:
        """Return when a machine ends by its warning."""
        return self._ends_at_s.get().get(node)

    def refresh(self, nodes: "Set[str]", now_s: float) -> tuple[str, ...]:
        """Ask the queue; `nodes` are the machines of this pool that are not gone. Returns what went wrong.

        A queue that does not answer is no reason to know nothing of the machines.
        """
        if not self._queue:
            return ()
        known = self._ends_at_s.get()
        self._ends_at_s.put({n: at_s for n, at_s in known.items() if n in nodes and now_s < at_s + _STALE_S})
        try:
            told, self._told = self._told, []
            for receipt in told:
                self._calls.delete(self._queue, receipt)
            return self._receive(nodes, now_s)
        except ProviderError as err:
            return (f"no interruption warnings from the queue: {err}",)

    def _receive(self, nodes: "Set[str]", now_s: float) -> tuple[str, ...]:
        said = []
        for _ in range(_MOST_BATCHES):
            messages = self._calls.receive(self._queue)
            for message in messages:
                receipt = message.get("ReceiptHandle", "")
                try:
                    notice = parse(message.get("Body", ""))
                except ValueError as err:
                    said.append(f"the notices queue held {err}; it was deleted")
                    notice = None
                if notice is not None and notice.node in nodes:
                    self._hold(notice, receipt)
                elif notice is None or now_s > notice.given_at_s + _FOREIGN_S:
                    self._calls.delete(self._queue, receipt)
            if len(messages) < 10:
                break
        return tuple(said)

    def _hold(self, notice: Notice, receipt: str) -> None:
        """Keep the earliest end: a repeated or late message adds nothing."""
        known = self._ends_at_s.get()
        ends_at_s = min(known.get(notice.node, notice.ends_at_s), notice.ends_at_s)
        self._ends_at_s.put({**known, notice.node: ends_at_s})
        self._told.append(receipt)

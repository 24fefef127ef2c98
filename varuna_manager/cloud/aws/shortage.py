"""Why a group has fewer machines than its target, by what it says of its last launches; pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.faults import shortage_trouble
from varuna_manager.cloud.provider import Trouble

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import ActivityTypeDef

_WAITING = ("PendingSpotBidPlacement", "WaitingForSpotInstanceRequestId", "WaitingForSpotInstanceId")
_PATIENCE_S = 120.0  # a request for Spot machines is open that long even when there are plenty
_FAILED = ("Failed", "Cancelled")


def shortage(
    activities: "Iterable[ActivityTypeDef]", after_s: float, now_s: float
) -> tuple[str, Trouble | None]:
    """Return the newest complaint about a launch and its kind; an empty one when there is none.

    `activities` are newest first. A launch that worked, or one from before `after_s`, ends the search: what
    failed before either is not why machines are missing now.
    """
    for activity in activities:
        if not activity.get("Description", "").startswith("Launching"):
            continue
        status, message = activity["StatusCode"], activity.get("StatusMessage", "")
        if status == "Successful" or activity["StartTime"].timestamp() < after_s:
            break
        if status in _FAILED:
            told = message or activity.get("Cause", "") or f"a launch ended as {status}"
            return told, shortage_trouble(told)
        if status in _WAITING and now_s > activity["StartTime"].timestamp() + _PATIENCE_S:
            return message or f"the group waits for the Spot market ({status})", Trouble.CAPACITY
    return "", None

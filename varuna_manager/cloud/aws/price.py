"""The Spot price of one more machine of a group."""

from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.calls import AwsCalls
from varuna_manager.cloud.provider import ProviderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from mypy_boto3_ec2.type_defs import SpotPriceTypeDef

_LIFETIME_S = 300.0


class SpotPrice:
    """Asks at most every five minutes, unless the group's types or zones change."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls
        self._asked: tuple[tuple[str, ...], frozenset[str]] | None = None
        self._at_s = 0.0
        self._price: float | None = None

    def of(self, kinds: tuple[str, ...], zones: "Set[str]", now_s: float) -> tuple[float | None, str]:
        """Return dollars per hour of the dearest of these types and zones, and what went wrong.

        The group chooses where the next machine runs; the dearest is what it can cost at most.
        """
        asked = (kinds, frozenset(zones))
        if not kinds:
            return None, ""
        if asked == self._asked and now_s < self._at_s + _LIFETIME_S:
            return self._price, ""
        self._asked, self._at_s = asked, now_s
        try:
            found = self._calls.spot_prices(kinds, now_s)
        except ProviderError as err:
            self._price = None
            return None, f"no Spot prices: {err}"
        self._price = dearest(found, zones)
        return self._price, ""


def dearest(prices: "Iterable[SpotPriceTypeDef]", zones: "Set[str]") -> float | None:
    """Return the highest among the newest prices of each type and zone; None if there is none."""
    newest: dict[tuple[str, str], SpotPriceTypeDef] = {}
    for price in prices:
        place = (price["InstanceType"], price["AvailabilityZone"])
        if place[1] not in zones:
            continue
        if place not in newest or newest[place]["Timestamp"] < price["Timestamp"]:
            newest[place] = price
    return max((float(price["SpotPrice"]) for price in newest.values()), default=None)

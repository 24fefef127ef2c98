"""The launch template of a group, looked at now and then."""

from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.advice import template_of
from varuna_manager.cloud.aws.calls import AwsCalls
from varuna_manager.cloud.provider import ProviderError

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import AutoScalingGroupTypeDef
    from mypy_boto3_ec2.type_defs import ResponseLaunchTemplateDataTypeDef

_LIFETIME_S = 600.0


class Template:
    """Asks at most every ten minutes, unless the group uses another one."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls
        self._asked: tuple[str, str] | None = None
        self._at_s = 0.0
        self._known: ResponseLaunchTemplateDataTypeDef | None = None

    def of(
        self, group: "AutoScalingGroupTypeDef", now_s: float
    ) -> "tuple[ResponseLaunchTemplateDataTypeDef | None, str]":
        """Return the content of the template, if the group has one, and what went wrong."""
        used = template_of(group)
        if used is None or "LaunchTemplateId" not in used:
            return None, ""
        asked = (used["LaunchTemplateId"], used.get("Version", "$Default"))
        if asked == self._asked and now_s < self._at_s + _LIFETIME_S:
            return self._known, ""
        self._asked, self._at_s, self._known = asked, now_s, None
        try:
            self._known = self._calls.template(*asked)
        except ProviderError as err:
            return None, f"the launch template is not known: {err}"
        return self._known, ""

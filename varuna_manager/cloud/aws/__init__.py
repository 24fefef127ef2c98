"""Pools of AWS machines: one Auto Scaling group is one pool. The SDK is loaded with the first call."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.calls import AwsCalls
from varuna_manager.cloud.aws.provider import AwsProvider
from varuna_manager.pool_settings import AwsPool
from varuna_runtime.spec.errors import InvalidInput

if TYPE_CHECKING:
    from varuna_manager.cloud.opening import Notes


def open_aws(settings: AwsPool, *, notes: "Notes") -> AwsProvider:
    """Return the provider of a group; InvalidInput when the SDK is missing. It asks nothing yet."""
    if find_spec("boto3") is None:
        raise InvalidInput(
            f"pool {settings.name}: the provider aws wants the package boto3, which is not installed; "
            "pip install 'varuna[aws]'"
        )
    return AwsProvider(settings, notes, AwsCalls(settings.region))

"""What Azure's answers mean: by code first, then by status."""

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    ServiceRequestError,
    ServiceResponseTimeoutError,
)

from varuna_manager.cloud.azure.errors import provider_error, told, trouble_of
from varuna_manager.cloud.provider import ProviderError, Trouble


@pytest.mark.parametrize(
    ("status", "codes", "message", "trouble"),
    [
        (200, ("AllocationFailed",), "", Trouble.CAPACITY),
        (200, ("OverconstrainedZonalAllocationRequest",), "", Trouble.CAPACITY),
        (409, ("SkuNotAvailable",), "", Trouble.CAPACITY),
        (400, ("SkuNotAvailable",), "", Trouble.CAPACITY),
        (200, ("VMScaleSetUpdateFailed", "AllocationFailed"), "", Trouble.CAPACITY),
        (409, ("OperationNotAllowed",), "exceeding approved LowPriorityCores quota", Trouble.QUOTA),
        (409, ("OperationNotAllowed",), "the VM is marked for deletion", Trouble.RETRY),
        (429, ("OperationNotAllowed",), "too many requests: over the limit", Trouble.THROTTLED),
        (429, (), "", Trouble.THROTTLED),
        (401, ("InvalidAuthenticationToken",), "", Trouble.AUTH),
        (403, ("AuthorizationFailed",), "", Trouble.AUTH),
        (403, ("RequestDisallowedByPolicy",), "", Trouble.AUTH),
        (404, ("ResourceGroupNotFound",), "", Trouble.CONFIG),
        (400, ("InvalidParameter",), "", Trouble.CONFIG),
        (409, ("Conflict",), "", Trouble.RETRY),
        (412, ("PreconditionFailed",), "", Trouble.RETRY),
        (200, ("OperationPreempted",), "", Trouble.RETRY),
        (503, (), "", Trouble.RETRY),
        (500, ("SomethingNew",), "", Trouble.RETRY),
        (200, ("VMExtensionProvisioningError",), "", Trouble.UNKNOWN),
        (None, (), "", Trouble.UNKNOWN),
    ],
)
def test_an_answer_is_judged_by_its_code_and_then_by_its_status(
    status: int | None, codes: tuple[str, ...], message: str, trouble: Trouble
) -> None:
    assert trouble_of(status, codes, message) is trouble


@pytest.mark.parametrize(
    ("err", "trouble"),
    [
        (ServiceRequestError("connection refused"), Trouble.RETRY),
        (ServiceResponseTimeoutError("timed out"), Trouble.RETRY),
        (ClientAuthenticationError("no identity"), Trouble.AUTH),
        (AzureError("what is this"), Trouble.UNKNOWN),
    ],
)
def test_what_is_no_answer_at_all_is_judged_by_its_kind(err: AzureError, trouble: Trouble) -> None:
    found = provider_error("cannot read", err)
    assert found.trouble is trouble
    assert found.retry_after_s is None
    assert str(err) in str(found)


def test_errors_of_the_sdk_come_out_as_ours_with_what_was_tried() -> None:
    with pytest.raises(ProviderError) as caught, told("cannot read the set"):
        raise ServiceRequestError("two\n lines")
    assert str(caught.value) == "cannot read the set: no proper answer: two lines"
    assert isinstance(caught.value.__cause__, ServiceRequestError)

"""What Azure's answers mean: by code first, then by status."""

import json

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
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
        (409, ("ScopeLocked",), "", Trouble.CONFIG),
        (409, ("MissingSubscriptionRegistration",), "", Trouble.CONFIG),
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


class Answer:
    """As much of a response as an error of the SDK reads."""

    reason = ""

    def __init__(self, status: int, error: dict[str, object], **headers: str) -> None:
        self.status_code = status
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}
        self._text = json.dumps({"error": error})

    def text(self) -> str:
        return self._text


def test_the_code_that_counts_may_lie_in_the_details() -> None:
    inner = {"code": "AllocationFailed", "message": "no room"}
    error = {"code": "VMScaleSetUpdateFailed", "message": "see details", "details": [inner]}
    found = provider_error("cannot grow", HttpResponseError(response=Answer(200, error)))
    assert found.trouble is Trouble.CAPACITY
    assert str(found) == "cannot grow: VMScaleSetUpdateFailed/AllocationFailed: see details (HTTP 200)"


def test_a_refused_secret_is_a_matter_of_credentials_whatever_its_status() -> None:
    answer = Answer(400, {"code": "invalid_client", "message": "AADSTS7000215"})
    assert provider_error("cannot read", ClientAuthenticationError(response=answer)).trouble is Trouble.AUTH


@pytest.mark.parametrize(
    ("text", "wait_s"), [("17", 17.0), ("-1", 0.0), ("Thu, 01 Jan 2026", None), ("", None)]
)
def test_how_long_to_wait_is_told_where_azure_says_it_in_seconds(text: str, wait_s: float | None) -> None:
    answer = Answer(429, {"code": "TooManyRequests", "message": ""}, Retry_After=text)
    assert provider_error("cannot read", HttpResponseError(response=answer)).retry_after_s == wait_s

"""What a failed AWS call means for us; pure but for the names of the SDK's exceptions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from varuna_manager.cloud.provider import ProviderError, Trouble

# Codes as EC2, Auto Scaling and SQS send them, without a trailing "Exception" or "Fault".
_CODES: Mapping[Trouble, frozenset[str]] = {
    Trouble.THROTTLED: frozenset(
        {
            "RequestLimitExceeded",
            "Throttling",
            "Throttled",
            "ThrottledRequest",
            "RequestThrottled",
            "EC2Throttled",
            "TooManyRequests",
            "SlowDown",
            "BandwidthLimitExceeded",
            "PriorRequestNotComplete",
        }
    ),
    Trouble.AUTH: frozenset(
        {
            "UnauthorizedOperation",
            "AuthFailure",
            "AccessDenied",
            "NotAuthorized",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
            "UnrecognizedClient",
            "MissingAuthenticationToken",
            "IncompleteSignature",
            "SignatureDoesNotMatch",
            "InvalidSignature",
            "ExpiredToken",
            "RequestExpired",
            "OptInRequired",
            "PendingVerification",
            "Blocked",
            "InvalidSecurity",
        }
    ),
    Trouble.QUOTA: frozenset(
        {
            "VcpuLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "MaxFleetCountExceeded",
            "InstanceLimitExceeded",
            "LimitExceeded",
            "InsufficientFreeAddressesInSubnet",
        }
    ),
    Trouble.CAPACITY: frozenset(
        {
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacity",
            "ReservationCapacityExceeded",
            "UnfulfillableCapacity",
            "SpotMaxPriceTooLow",
            "Unsupported",
        }
    ),
    Trouble.RETRY: frozenset(
        {
            "ScalingActivityInProgress",
            "ResourceContention",
            "InternalFailure",
            "InternalError",
            "InternalServerError",
            "ServiceUnavailable",
            "Unavailable",
            "RequestTimeout",
            "RequestTimeoutException",
        }
    ),
    Trouble.CONFIG: frozenset(
        {
            "ValidationError",
            "ValidationException",
            "OperationNotPermitted",
            "OperationNotSupported",
            "MissingParameter",
            "UnknownParameter",
            "NonExistentQueue",
            "QueueDoesNotExist",
            "InvalidAddress",
        }
    ),
}
_TROUBLES = {code: trouble for trouble, codes in _CODES.items() for code in codes}

# Activities of a group tell of a failed launch in prose, and only sometimes with a code.
_PROSE = (
    ("vcpu limit", Trouble.QUOTA),
    ("vcpu capacity than your current", Trouble.QUOTA),
    ("exceeds your current", Trouble.QUOTA),
    ("not have sufficient", Trouble.CAPACITY),
    ("no spot capacity", Trouble.CAPACITY),
    ("spot request price", Trouble.CAPACITY),
    ("service-linked role", Trouble.AUTH),
    ("not authorized", Trouble.AUTH),
    ("access denied", Trouble.AUTH),
    ("throttl", Trouble.THROTTLED),
    ("request limit exceeded", Trouble.THROTTLED),
    ("does not exist", Trouble.CONFIG),
    ("invalid", Trouble.CONFIG),
    ("not supported", Trouble.CONFIG),
)
_ADVICE = {
    Trouble.RETRY: "it is asked again",
    Trouble.THROTTLED: "it is asked again later",
    Trouble.CAPACITY: "it is asked again later",
    Trouble.QUOTA: "ask AWS to raise the limit",
    Trouble.AUTH: "check the manager's credentials and the permissions of its role",
    Trouble.CONFIG: "correct the group or the pool's settings",
    Trouble.UNKNOWN: "look at the group in the console",
}
_LONGEST = 600  # characters of a message; an encoded authorization failure runs to thousands


def trouble_of(code: str, status: int = 0) -> Trouble:
    """Return what a code of an error means; a status decides for a code that we do not know."""
    plain = code.rpartition("#")[2].removeprefix("Client.").removeprefix("Server.")
    plain = plain.removeprefix("AWS.SimpleQueueService.")
    for word in (
        plain,
        plain.removesuffix("Exception"),
        plain.removesuffix("Fault"),
        plain.partition(".")[0],
    ):
        if word in _TROUBLES:
            return _TROUBLES[word]
    if status == 429:
        return Trouble.THROTTLED
    if status in (401, 403):
        return Trouble.AUTH
    if status >= 500:
        return Trouble.RETRY
    return Trouble.CONFIG if plain.startswith("Invalid") else Trouble.UNKNOWN


def shortage_trouble(message: str) -> Trouble:
    """Return what the message of a failed launch means: by its code words, else by its prose."""
    words = (word.strip(".,:;()[]'\"") for word in message.split())
    for word in words:
        if word[:1].isupper() and (found := trouble_of(word)) not in (Trouble.UNKNOWN, Trouble.CONFIG):
            return found
    lower = message.lower()
    return next((trouble for phrase, trouble in _PROSE if phrase in lower), Trouble.UNKNOWN)


@contextmanager
def translated(operation: str, *, fine: Sequence[str] = ()) -> Iterator[None]:
    """Raise ProviderError in the place of whatever the SDK raises during `operation`.

    A refusal whose code or message holds one of `fine` means that there was nothing to do.
    """
    from botocore import exceptions as sdk
    from botocore.parsers import ResponseParserError

    try:
        yield
    except sdk.ClientError as err:
        if any(words in str(err) for words in fine):
            return
        raise _refused(operation, err.response) from err
    except ResponseParserError as err:
        raise _failed(operation, "an answer that is not AWS's", Trouble.RETRY) from err
    except (
        sdk.NoCredentialsError,
        sdk.PartialCredentialsError,
        sdk.CredentialRetrievalError,
        sdk.ProfileNotFound,
        sdk.NoAuthTokenError,
        sdk.SSOError,
        sdk.TokenRetrievalError,
    ) as err:
        raise _failed(operation, str(err), Trouble.AUTH) from err
    except (sdk.ConnectionError, sdk.HTTPClientError, sdk.MetadataRetrievalError) as err:
        raise _failed(operation, str(err), Trouble.RETRY) from err
    except sdk.BotoCoreError as err:
        raise _failed(operation, str(err), Trouble.CONFIG) from err


def _refused(operation: str, response: Mapping[str, Any]) -> ProviderError:
    error, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    code = str(error.get("Code", ""))
    trouble = trouble_of(code, int(meta.get("HTTPStatusCode", 0)))
    after = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
    refusal = f"{code}: {error.get('Message', '')}"
    return _failed(operation, refusal, trouble, float(after) if after.isdecimal() else None)


def _failed(operation: str, seen: str, trouble: Trouble, after_s: float | None = None) -> ProviderError:
    brief = seen if len(seen) <= _LONGEST else f"{seen[:_LONGEST]}..."
    message = f"AWS did not do {operation}: {brief}; {_ADVICE[trouble]}"
    return ProviderError(message, trouble=trouble, retry_after_s=after_s)

"""The one exception tree; expected outcomes (Infeasible, a checkpoint refused in a scan) are values."""

import re

from varuna_runtime.spec.generation import Fault


class VarunaError(Exception):
    """Root of every error this product raises on purpose."""


class InvalidInput(VarunaError):
    """A person or a file gave something we refuse; the message says what was seen, wanted, and what to do."""


class Conflict(VarunaError):
    """The request is legal but not now: a second manager, a terminal job, a name in use."""


class NotFound(VarunaError):
    """No job, node or file of that name; the message lists close ones or says where to look."""


class NoManager(VarunaError):
    """No manager answers; the message says how to start one."""


class MetadataUnavailable(VarunaError):
    """The metadata service of the machine's cloud gave no answer that makes sense."""


class AccessRefused(VarunaError):
    """Who calls is not known, or not for this; the message says why and how to get access."""


class DataHangs(VarunaError):
    """A data set did not give its samples in time."""


class PlanMismatch(VarunaError):
    """Ranks of one generation do not hold the same plan; nothing was started."""


class PeerLost(VarunaError):
    """A rank of the same generation went away; collateral, never the first cause."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank = rank
        self.reason = _in_brief(reason)
        super().__init__(f"rank {rank} is gone: {self.reason}")


class PeerFailed(VarunaError):
    """A rank of the same generation failed first and said why; the fault is its own, collateral here."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"rank {fault.rank} failed: {fault.message}")
        self.fault = fault


def _in_brief(reason: str) -> str:
    """Return what a communication library said, without its source lines, advice and stack."""
    line = (reason.splitlines() or [""])[0]
    return re.sub(
        r"^RuntimeError: |\[[^\]\s]*\.(cc|cpp|h):\d+\] |\. This is typically caused by .*", "", line
    )


class CheckpointRefused(VarunaError):
    """A checkpoint is torn, mixed, truncated, foreign or corrupt; the message names the object."""


class StoreError(VarunaError):
    """The object store failed; retryable unless it is one of the kinds below."""


class StoreRefused(StoreError):
    """The store will not do this however often it is asked: a bad key, no permission, no credentials."""


class ObjectExists(StoreError):
    """Put-if-absent found an object under that key."""


class ObjectMissing(StoreError):
    """No object under that key."""


class ModelRefused(VarunaError):
    """The model or data set breaks the pipeline or the exactness contract; the message names the module."""


class StepDiverged(VarunaError):
    """A step gave non-finite gradients, no weight, or other weights on two replicas; it was not applied."""


class VaultLost(VarunaError):
    """A vault does not answer, ended the connection, or sent bytes that are not what it held."""


class VaultRefused(VarunaError):
    """A vault will not do this: over its limit, a job it does not know, a generation that is retired."""


class CopyGone(VarunaError):
    """A vault does not hold this copy, or no longer as it was when the reading began."""

"""Checks of a submission that need no state: what a client says is parsed and doubted again here."""

import re
from dataclasses import dataclass

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import bundle
from varuna_runtime.wire.v1 import client_pb2

_SUFFIX = re.compile(r"[0-9a-f]{6}")  # as secrecy.new_suffix makes it
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job and the structure of its model, fit for each other."""

    spec: JobSpec
    model: ModelRecord


def parsed(request: client_pb2.SubmitRequest) -> Submission:
    """Return the submission; InvalidInput says what was seen, what was wanted."""
    spec = canonical.loads(JobSpec, request.job_json)
    model = canonical.loads(ModelRecord, request.model_json)
    if not model.segments:
        raise InvalidInput("the model has no segments; inspect the script again")
    if model.num_steps < 1:
        raise InvalidInput(f"the training has {model.num_steps} steps, wanted at least 1")
    stages = spec.layout.stages
    if stages != "auto" and stages > len(model.segments):
        raise InvalidInput(
            f"layout.stages: seen {stages}, wanted at most {len(model.segments)}, the segments of this model"
        )
    if spec.micro_batch_size != "auto" and spec.micro_batch_size > spec.batch_size:
        raise InvalidInput(
            f"micro_batch_size: seen {spec.micro_batch_size}, wanted at most batch_size = {spec.batch_size}"
        )
    if spec.nodes.min > spec.nodes.max:
        raise InvalidInput(f"nodes.min: seen {spec.nodes.min}, wanted at most nodes.max = {spec.nodes.max}")
    if spec.steps is not None and spec.epochs is not None:
        raise InvalidInput("steps and epochs are both given, wanted at most one")
    return Submission(spec=spec, model=model)


def checked_secrets(request: client_pb2.SubmitRequest, spec: JobSpec) -> dict[str, str]:
    """Return the secrets if they are exactly those the job names; no value is ever in a message."""
    given, named = set(request.secrets), set(spec.secrets)
    if given != named:
        missing, unasked = sorted(named - given), sorted(given - named)
        raise InvalidInput(f"secrets: missing {missing}, not named in the job {unasked}")
    return dict(request.secrets)


def is_id(job: str, name: str) -> bool:
    """Return whether a job of this name may have this id."""
    return job.startswith(f"{name}-") and bool(_SUFFIX.fullmatch(job[len(name) + 1 :]))


def bundle_key(sha256: str) -> str:
    """Return the store key of the bundle that a client named."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidInput(f"bundle: seen {sha256[:80]!r}, wanted a SHA-256 in hex")
    return bundle.bundle_key(sha256)

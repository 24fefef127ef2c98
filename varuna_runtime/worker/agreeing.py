"""From which version the ranks of a generation start: the manager says, or they find out when they meet."""

from collections.abc import Sequence

from varuna_runtime.spec.copies import Version, newest_common
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.wire.v1 import worker_pb2
from varuna_runtime.worker.rendezvous import Rendezvous


def agreed_version(
    request: worker_pb2.ActivateRequest, meeting: Rendezvous, loadable: Sequence[Version]
) -> Version:
    """Return the same version on every rank; PlanMismatch, or CheckpointRefused if there is none."""
    if request.HasField("resume"):
        version = Version(step=request.resume.step, generation=request.resume.generation)
        meeting.agree("version", _word(version))
        return version
    words = meeting.gather("loadable", " ".join(_word(version) for version in loadable))
    common = newest_common([_version(word) for word in text.split()] for text in words)
    if common is None:
        raise CheckpointRefused(f"there is no step that all ranks can load; they could load {words}")
    return common


def _word(version: Version) -> str:
    return f"{version.step}/{version.generation}"


def _version(word: str) -> Version:
    step, _, generation = word.partition("/")
    return Version(step=int(step), generation=int(generation))

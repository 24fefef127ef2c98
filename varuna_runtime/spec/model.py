"""The structure of a job's model as recorded at submit: segments and tied parameters, no tensors."""

from dataclasses import dataclass

from varuna_runtime.spec import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """One parameter or buffer of a segment, by its name inside the whole model."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as torch prints it without the prefix: float32, int64
    is_buffer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """The smallest unit that can be cut, profiled, checkpointed and owned."""

    index: int
    name: str
    tensors: tuple[TensorRecord, ...]  # a tied parameter is listed under its first use only
    param_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedUse:
    """One use of a tied parameter: its name as seen from `segment`."""

    segment: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameter:
    """One logical parameter with uses in several segments; `uses[0]` names it and sorts first by segment."""

    uses: tuple[TiedUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A pure function of the model's structure and the data set's length."""

    segments: tuple[SegmentRecord, ...]
    tied: tuple[TiedParameter, ...]
    num_samples: int | None  # None: a stream
    num_steps: int  # resolved length of the training
    aliases: tuple[
        tuple[str, ...], ...
    ] = ()  # all names of a tensor that has several, the recorded one first

    def hash(self) -> str:
        """SHA-256 of the structure."""
        return canonical.digest(self.segments) if self.segments else ""

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_KIND_UNSPECIFIED: _ClassVar[GenerationKind]
    TRAIN: _ClassVar[GenerationKind]
    PROFILE: _ClassVar[GenerationKind]

class FailureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CAUSE_UNSPECIFIED: _ClassVar[FailureCause]
    USER_ERROR: _ClassVar[FailureCause]
    WORKER_CRASH: _ClassVar[FailureCause]
    PEER_LOST: _ClassVar[FailureCause]
    HANG: _ClassVar[FailureCause]
    START_FAILED: _ClassVar[FailureCause]
    PLAN_MISMATCH: _ClassVar[FailureCause]
GENERATION_KIND_UNSPECIFIED: GenerationKind
TRAIN: GenerationKind
PROFILE: GenerationKind
FAILURE_CAUSE_UNSPECIFIED: FailureCause
USER_ERROR: FailureCause
WORKER_CRASH: FailureCause
PEER_LOST: FailureCause
HANG: FailureCause
START_FAILED: FailureCause
PLAN_MISMATCH: FailureCause

class Failure(_message.Message):
    __slots__ = ("cause", "message", "detail", "exit_code", "signal", "peer_rank")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    PEER_RANK_FIELD_NUMBER: _ClassVar[int]
    cause: FailureCause
    message: str
    detail: str
    exit_code: int
    signal: int
    peer_rank: int
    def __init__(self, cause: _Optional[_Union[FailureCause, str]] = ..., message: _Optional[str] = ..., detail: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., peer_rank: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("rank", "host", "port")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    port: int
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class StepDone(_message.Message):
    __slots__ = ("step", "loss_hex", "loss", "weight", "samples", "step_s", "grad_norm", "learning_rate", "loss_scale", "skipped", "busy_s", "busy_samples", "recoverable")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_HEX_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RECOVERABLE_FIELD_NUMBER: _ClassVar[int]
    step: int
    loss_hex: str
    loss: float
    weight: float
    samples: int
    step_s: float
    grad_norm: float
    learning_rate: float
    loss_scale: float
    skipped: bool
    busy_s: float
    busy_samples: int
    recoverable: int
    def __init__(self, step: _Optional[int] = ..., loss_hex: _Optional[str] = ..., loss: _Optional[float] = ..., weight: _Optional[float] = ..., samples: _Optional[int] = ..., step_s: _Optional[float] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., loss_scale: _Optional[float] = ..., skipped: bool = ..., busy_s: _Optional[float] = ..., busy_samples: _Optional[int] = ..., recoverable: _Optional[int] = ...) -> None: ...

class EvaluationDone(_message.Message):
    __slots__ = ("step", "generation", "samples", "evaluation_s", "figures")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_S_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    samples: int
    evaluation_s: float
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., samples: _Optional[int] = ..., evaluation_s: _Optional[float] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "value_hex", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_HEX_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value_hex: str
    weight: float
    def __init__(self, name: _Optional[str] = ..., value_hex: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class CommittedStep(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: StepDone
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[_Union[StepDone, _Mapping]] = ...) -> None: ...

class Durable(_message.Message):
    __slots__ = ("step", "manifest_key")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_KEY_FIELD_NUMBER: _ClassVar[int]
    step: int
    manifest_key: str
    def __init__(self, step: _Optional[int] = ..., manifest_key: _Optional[str] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("step", "kept")
    STEP_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    step: int
    kept: bool
    def __init__(self, step: _Optional[int] = ..., kept: bool = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("step", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Vault(_message.Message):
    __slots__ = ("node", "host", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    port: int
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class SaveFailed(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PeerSilent(_message.Message):
    __slots__ = ("rank", "silent_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    silent_s: float
    def __init__(self, rank: _Optional[int] = ..., silent_s: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("step", "weights_sha256", "profile_json")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    PROFILE_JSON_FIELD_NUMBER: _ClassVar[int]
    step: int
    weights_sha256: str
    profile_json: bytes
    def __init__(self, step: _Optional[int] = ..., weights_sha256: _Optional[str] = ..., profile_json: _Optional[bytes] = ...) -> None: ...

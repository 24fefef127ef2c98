from varuna_runtime.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareRequest(_message.Message):
    __slots__ = ("job", "generation", "rank", "kind", "plan_json", "job_json", "model_json", "store_url", "resume_step", "host", "generation_secret", "vault_socket", "copies_secret", "vaults", "buddies", "unmended_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_SECRET_FIELD_NUMBER: _ClassVar[int]
    VAULT_SOCKET_FIELD_NUMBER: _ClassVar[int]
    COPIES_SECRET_FIELD_NUMBER: _ClassVar[int]
    VAULTS_FIELD_NUMBER: _ClassVar[int]
    BUDDIES_FIELD_NUMBER: _ClassVar[int]
    UNMENDED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    rank: int
    kind: _common_pb2.GenerationKind
    plan_json: bytes
    job_json: bytes
    model_json: bytes
    store_url: str
    resume_step: int
    host: str
    generation_secret: str
    vault_socket: str
    copies_secret: str
    vaults: _containers.RepeatedCompositeFieldContainer[_common_pb2.Vault]
    buddies: _containers.RepeatedCompositeFieldContainer[_common_pb2.Vault]
    unmended_s: float
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., kind: _Optional[_Union[_common_pb2.GenerationKind, str]] = ..., plan_json: _Optional[bytes] = ..., job_json: _Optional[bytes] = ..., model_json: _Optional[bytes] = ..., store_url: _Optional[str] = ..., resume_step: _Optional[int] = ..., host: _Optional[str] = ..., generation_secret: _Optional[str] = ..., vault_socket: _Optional[str] = ..., copies_secret: _Optional[str] = ..., vaults: _Optional[_Iterable[_Union[_common_pb2.Vault, _Mapping]]] = ..., buddies: _Optional[_Iterable[_Union[_common_pb2.Vault, _Mapping]]] = ..., unmended_s: _Optional[float] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("plan_hash", "endpoint", "resume_step", "loaded", "loadable")
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    LOADABLE_FIELD_NUMBER: _ClassVar[int]
    plan_hash: str
    endpoint: _common_pb2.Endpoint
    resume_step: int
    loaded: _common_pb2.Version
    loadable: _containers.RepeatedCompositeFieldContainer[_common_pb2.Version]
    def __init__(self, plan_hash: _Optional[str] = ..., endpoint: _Optional[_Union[_common_pb2.Endpoint, _Mapping]] = ..., resume_step: _Optional[int] = ..., loaded: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., loadable: _Optional[_Iterable[_Union[_common_pb2.Version, _Mapping]]] = ...) -> None: ...

class ActivateRequest(_message.Message):
    __slots__ = ("generation", "endpoints", "resume")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    generation: int
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    resume: _common_pb2.Version
    def __init__(self, generation: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., resume: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...

class ActivateReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("generation", "within_s", "persist")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    within_s: float
    persist: bool
    def __init__(self, generation: _Optional[int] = ..., within_s: _Optional[float] = ..., persist: bool = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class WorkerProgress(_message.Message):
    __slots__ = ("generation", "beat", "ready", "active", "step", "durable", "drained", "finished", "failed", "evaluation", "kept", "save_failed", "peer_silent")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FAILED_FIELD_NUMBER: _ClassVar[int]
    PEER_SILENT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    beat: WorkerBeat
    ready: WorkerReady
    active: WorkerActive
    step: _common_pb2.StepDone
    durable: _common_pb2.Durable
    drained: _common_pb2.Drained
    finished: _common_pb2.Finished
    failed: _common_pb2.Failure
    evaluation: _common_pb2.EvaluationDone
    kept: _common_pb2.Kept
    save_failed: _common_pb2.SaveFailed
    peer_silent: _common_pb2.PeerSilent
    def __init__(self, generation: _Optional[int] = ..., beat: _Optional[_Union[WorkerBeat, _Mapping]] = ..., ready: _Optional[_Union[WorkerReady, _Mapping]] = ..., active: _Optional[_Union[WorkerActive, _Mapping]] = ..., step: _Optional[_Union[_common_pb2.StepDone, _Mapping]] = ..., durable: _Optional[_Union[_common_pb2.Durable, _Mapping]] = ..., drained: _Optional[_Union[_common_pb2.Drained, _Mapping]] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., failed: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., evaluation: _Optional[_Union[_common_pb2.EvaluationDone, _Mapping]] = ..., kept: _Optional[_Union[_common_pb2.Kept, _Mapping]] = ..., save_failed: _Optional[_Union[_common_pb2.SaveFailed, _Mapping]] = ..., peer_silent: _Optional[_Union[_common_pb2.PeerSilent, _Mapping]] = ...) -> None: ...

class WorkerBeat(_message.Message):
    __slots__ = ("step", "in_step_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    IN_STEP_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    in_step_s: float
    def __init__(self, step: _Optional[int] = ..., in_step_s: _Optional[float] = ...) -> None: ...

class WorkerReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerActive(_message.Message):
    __slots__ = ("step", "earlier", "evaluations")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    step: int
    earlier: _containers.RepeatedCompositeFieldContainer[_common_pb2.CommittedStep]
    evaluations: _containers.RepeatedCompositeFieldContainer[_common_pb2.EvaluationDone]
    def __init__(self, step: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[_common_pb2.CommittedStep, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[_common_pb2.EvaluationDone, _Mapping]]] = ...) -> None: ...

from varuna_runtime.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("seq", "hello", "beat", "rank", "steps", "notice", "gone", "goodbye", "warm", "notices")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hello: Hello
    beat: Beat
    rank: RankReport
    steps: StepReport
    notice: NoticeReport
    gone: GenerationGone
    goodbye: Goodbye
    warm: WarmReport
    notices: NoticesHealth
    def __init__(self, seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., rank: _Optional[_Union[RankReport, _Mapping]] = ..., steps: _Optional[_Union[StepReport, _Mapping]] = ..., notice: _Optional[_Union[NoticeReport, _Mapping]] = ..., gone: _Optional[_Union[GenerationGone, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., warm: _Optional[_Union[WarmReport, _Mapping]] = ..., notices: _Optional[_Union[NoticesHealth, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "incarnation", "slots", "device_kind", "memory_bytes", "host", "version", "pid", "notices", "running", "vault_port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VAULT_PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    slots: int
    device_kind: str
    memory_bytes: int
    host: str
    version: str
    pid: int
    notices: str
    running: _containers.RepeatedCompositeFieldContainer[Running]
    vault_port: int
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., slots: _Optional[int] = ..., device_kind: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., host: _Optional[str] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., notices: _Optional[str] = ..., running: _Optional[_Iterable[_Union[Running, _Mapping]]] = ..., vault_port: _Optional[int] = ...) -> None: ...

class Running(_message.Message):
    __slots__ = ("job", "generation", "ranks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: _containers.RepeatedCompositeFieldContainer[Running]
    def __init__(self, running: _Optional[_Iterable[_Union[Running, _Mapping]]] = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("job", "generation", "rank", "prepared", "ready", "active", "durable", "drained", "finished", "failed", "evaluation", "kept", "save_failed", "peer_silent")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FAILED_FIELD_NUMBER: _ClassVar[int]
    PEER_SILENT_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    rank: int
    prepared: Prepared
    ready: Ready
    active: Active
    durable: _common_pb2.Durable
    drained: _common_pb2.Drained
    finished: _common_pb2.Finished
    failed: _common_pb2.Failure
    evaluation: _common_pb2.EvaluationDone
    kept: _common_pb2.Kept
    save_failed: _common_pb2.SaveFailed
    peer_silent: _common_pb2.PeerSilent
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., active: _Optional[_Union[Active, _Mapping]] = ..., durable: _Optional[_Union[_common_pb2.Durable, _Mapping]] = ..., drained: _Optional[_Union[_common_pb2.Drained, _Mapping]] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., failed: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., evaluation: _Optional[_Union[_common_pb2.EvaluationDone, _Mapping]] = ..., kept: _Optional[_Union[_common_pb2.Kept, _Mapping]] = ..., save_failed: _Optional[_Union[_common_pb2.SaveFailed, _Mapping]] = ..., peer_silent: _Optional[_Union[_common_pb2.PeerSilent, _Mapping]] = ...) -> None: ...

class Prepared(_message.Message):
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

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Active(_message.Message):
    __slots__ = ("step", "earlier", "evaluations")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    step: int
    earlier: _containers.RepeatedCompositeFieldContainer[_common_pb2.CommittedStep]
    evaluations: _containers.RepeatedCompositeFieldContainer[_common_pb2.EvaluationDone]
    def __init__(self, step: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[_common_pb2.CommittedStep, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[_common_pb2.EvaluationDone, _Mapping]]] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("job", "generation", "steps", "rank")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    steps: _containers.RepeatedCompositeFieldContainer[_common_pb2.StepDone]
    rank: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[_common_pb2.StepDone, _Mapping]]] = ..., rank: _Optional[int] = ...) -> None: ...

class NoticeReport(_message.Message):
    __slots__ = ("node", "seconds_left", "source", "cancelled", "is_hint", "detail", "is_urgent")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    IS_HINT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    IS_URGENT_FIELD_NUMBER: _ClassVar[int]
    node: str
    seconds_left: float
    source: str
    cancelled: bool
    is_hint: bool
    detail: str
    is_urgent: bool
    def __init__(self, node: _Optional[str] = ..., seconds_left: _Optional[float] = ..., source: _Optional[str] = ..., cancelled: bool = ..., is_hint: bool = ..., detail: _Optional[str] = ..., is_urgent: bool = ...) -> None: ...

class NoticesHealth(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class GenerationGone(_message.Message):
    __slots__ = ("job", "generation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class WarmReport(_message.Message):
    __slots__ = ("job", "ok", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    ok: bool
    reason: str
    def __init__(self, job: _Optional[str] = ..., ok: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ManagerMessage(_message.Message):
    __slots__ = ("epoch", "welcome", "ack", "start", "activate", "drain", "abort", "forget", "leave", "fenced", "warm", "retire")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    welcome: Welcome
    ack: Ack
    start: Start
    activate: Activate
    drain: Drain
    abort: Abort
    forget: Forget
    leave: Leave
    fenced: Fenced
    warm: Warm
    retire: Retire
    def __init__(self, epoch: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., activate: _Optional[_Union[Activate, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., warm: _Optional[_Union[Warm, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("beat_s", "lease_s", "stop_on_disconnect_after_s")
    BEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    STOP_ON_DISCONNECT_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    beat_s: float
    lease_s: float
    stop_on_disconnect_after_s: float
    def __init__(self, beat_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., stop_on_disconnect_after_s: _Optional[float] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("job", "generation", "kind", "plan_json", "job_json", "model_json", "ranks", "bundle", "store_url", "bundle_store_url", "resume_step", "secrets", "generation_secret", "copies_secret", "vaults", "buddies", "unmended_s")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_STORE_URL_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_SECRET_FIELD_NUMBER: _ClassVar[int]
    COPIES_SECRET_FIELD_NUMBER: _ClassVar[int]
    VAULTS_FIELD_NUMBER: _ClassVar[int]
    BUDDIES_FIELD_NUMBER: _ClassVar[int]
    UNMENDED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    kind: _common_pb2.GenerationKind
    plan_json: bytes
    job_json: bytes
    model_json: bytes
    ranks: _containers.RepeatedScalarFieldContainer[int]
    bundle: str
    store_url: str
    bundle_store_url: str
    resume_step: int
    secrets: _containers.ScalarMap[str, str]
    generation_secret: str
    copies_secret: str
    vaults: _containers.RepeatedCompositeFieldContainer[_common_pb2.Vault]
    buddies: _containers.RepeatedCompositeFieldContainer[Buddies]
    unmended_s: float
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., kind: _Optional[_Union[_common_pb2.GenerationKind, str]] = ..., plan_json: _Optional[bytes] = ..., job_json: _Optional[bytes] = ..., model_json: _Optional[bytes] = ..., ranks: _Optional[_Iterable[int]] = ..., bundle: _Optional[str] = ..., store_url: _Optional[str] = ..., bundle_store_url: _Optional[str] = ..., resume_step: _Optional[int] = ..., secrets: _Optional[_Mapping[str, str]] = ..., generation_secret: _Optional[str] = ..., copies_secret: _Optional[str] = ..., vaults: _Optional[_Iterable[_Union[_common_pb2.Vault, _Mapping]]] = ..., buddies: _Optional[_Iterable[_Union[Buddies, _Mapping]]] = ..., unmended_s: _Optional[float] = ...) -> None: ...

class Buddies(_message.Message):
    __slots__ = ("rank", "vaults")
    RANK_FIELD_NUMBER: _ClassVar[int]
    VAULTS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    vaults: _containers.RepeatedCompositeFieldContainer[_common_pb2.Vault]
    def __init__(self, rank: _Optional[int] = ..., vaults: _Optional[_Iterable[_Union[_common_pb2.Vault, _Mapping]]] = ...) -> None: ...

class Activate(_message.Message):
    __slots__ = ("job", "generation", "endpoints", "resume")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    resume: _common_pb2.Version
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., resume: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("job", "generation", "within_s", "reason", "persist")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    within_s: float
    reason: str
    persist: bool
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., within_s: _Optional[float] = ..., reason: _Optional[str] = ..., persist: bool = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("job", "generation", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    reason: str
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Warm(_message.Message):
    __slots__ = ("job", "job_json", "bundle", "bundle_store_url", "secrets")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_STORE_URL_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    job: str
    job_json: bytes
    bundle: str
    bundle_store_url: str
    secrets: _containers.ScalarMap[str, str]
    def __init__(self, job: _Optional[str] = ..., job_json: _Optional[bytes] = ..., bundle: _Optional[str] = ..., bundle_store_url: _Optional[str] = ..., secrets: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("job", "generation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("node", "job", "generation", "rank", "offset", "data")
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    node: str
    job: str
    generation: int
    rank: int
    offset: int
    data: bytes
    def __init__(self, node: _Optional[str] = ..., job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class LogAck(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("csr_pem",)
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    csr_pem: bytes
    def __init__(self, csr_pem: _Optional[bytes] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate_pem", "ca_pem", "expires_in_s")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    ca_pem: bytes
    expires_in_s: float
    def __init__(self, certificate_pem: _Optional[bytes] = ..., ca_pem: _Optional[bytes] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

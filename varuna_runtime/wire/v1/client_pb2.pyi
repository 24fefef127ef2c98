from varuna_runtime.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    JOIN: _ClassVar[TokenKind]
    USER: _ClassVar[TokenKind]
TOKEN_KIND_UNSPECIFIED: TokenKind
JOIN: TokenKind
USER: TokenKind

class BundleChunk(_message.Message):
    __slots__ = ("sha256", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    data: bytes
    def __init__(self, sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutBundleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("job_json", "model_json", "bundle", "secrets", "profile_json", "user", "request_id", "job")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_JSON_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job_json: bytes
    model_json: bytes
    bundle: str
    secrets: _containers.ScalarMap[str, str]
    profile_json: bytes
    user: str
    request_id: str
    job: str
    def __init__(self, job_json: _Optional[bytes] = ..., model_json: _Optional[bytes] = ..., bundle: _Optional[str] = ..., secrets: _Optional[_Mapping[str, str]] = ..., profile_json: _Optional[bytes] = ..., user: _Optional[str] = ..., request_id: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StorageRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StorageReply(_message.Message):
    __slots__ = ("url", "job")
    URL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    url: str
    job: str
    def __init__(self, url: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class JobsRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class JobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "name", "state", "reason", "generation", "layout", "nodes", "step", "durable_step", "num_steps", "loss", "samples_per_s", "eta_s", "submitted_at", "ended_at", "replayed_steps", "weights_sha256", "user", "job_json", "batch_json", "morphs", "recoverable_step", "durable_at")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ETA_S_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    BATCH_JSON_FIELD_NUMBER: _ClassVar[int]
    MORPHS_FIELD_NUMBER: _ClassVar[int]
    RECOVERABLE_STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_AT_FIELD_NUMBER: _ClassVar[int]
    job: str
    name: str
    state: str
    reason: str
    generation: int
    layout: str
    nodes: int
    step: int
    durable_step: int
    num_steps: int
    loss: float
    samples_per_s: float
    eta_s: float
    submitted_at: float
    ended_at: float
    replayed_steps: int
    weights_sha256: str
    user: str
    job_json: bytes
    batch_json: bytes
    morphs: int
    recoverable_step: int
    durable_at: float
    def __init__(self, job: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., generation: _Optional[int] = ..., layout: _Optional[str] = ..., nodes: _Optional[int] = ..., step: _Optional[int] = ..., durable_step: _Optional[int] = ..., num_steps: _Optional[int] = ..., loss: _Optional[float] = ..., samples_per_s: _Optional[float] = ..., eta_s: _Optional[float] = ..., submitted_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., replayed_steps: _Optional[int] = ..., weights_sha256: _Optional[str] = ..., user: _Optional[str] = ..., job_json: _Optional[bytes] = ..., batch_json: _Optional[bytes] = ..., morphs: _Optional[int] = ..., recoverable_step: _Optional[int] = ..., durable_at: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job", "rank", "follow")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    follow: bool
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., follow: bool = ...) -> None: ...

class LogsChunk(_message.Message):
    __slots__ = ("generation", "rank", "data")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    data: bytes
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("job", "follow", "after")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    follow: bool
    after: int
    def __init__(self, job: _Optional[str] = ..., follow: bool = ..., after: _Optional[int] = ...) -> None: ...

class EventRecord(_message.Message):
    __slots__ = ("id", "at", "job", "node", "generation", "what", "who", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: int
    at: float
    job: str
    node: str
    generation: int
    what: str
    who: str
    why: str
    def __init__(self, id: _Optional[int] = ..., at: _Optional[float] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., generation: _Optional[int] = ..., what: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class StepsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("step", "generation", "loss_hex", "loss", "samples", "step_s", "at")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOSS_HEX_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    loss_hex: str
    loss: float
    samples: int
    step_s: float
    at: float
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., loss_hex: _Optional[str] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., step_s: _Optional[float] = ..., at: _Optional[float] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("job", "follow")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    follow: bool
    def __init__(self, job: _Optional[str] = ..., follow: bool = ...) -> None: ...

class MetricRecord(_message.Message):
    __slots__ = ("generation", "at", "step", "evaluation")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    at: float
    step: _common_pb2.StepDone
    evaluation: _common_pb2.EvaluationDone
    def __init__(self, generation: _Optional[int] = ..., at: _Optional[float] = ..., step: _Optional[_Union[_common_pb2.StepDone, _Mapping]] = ..., evaluation: _Optional[_Union[_common_pb2.EvaluationDone, _Mapping]] = ...) -> None: ...

class NodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "state", "reason", "incarnation", "slots", "device_kind", "job", "ranks", "notice_in_s", "notices", "pid", "pool", "copies")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_IN_S_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    node: str
    state: str
    reason: str
    incarnation: str
    slots: int
    device_kind: str
    job: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    notice_in_s: float
    notices: str
    pid: int
    pool: str
    copies: _containers.RepeatedCompositeFieldContainer[Copies]
    def __init__(self, node: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., incarnation: _Optional[str] = ..., slots: _Optional[int] = ..., device_kind: _Optional[str] = ..., job: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., notice_in_s: _Optional[float] = ..., notices: _Optional[str] = ..., pid: _Optional[int] = ..., pool: _Optional[str] = ..., copies: _Optional[_Iterable[_Union[Copies, _Mapping]]] = ...) -> None: ...

class Copies(_message.Message):
    __slots__ = ("job", "generation", "segments", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    segments: _containers.RepeatedScalarFieldContainer[int]
    step: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., segments: _Optional[_Iterable[int]] = ..., step: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("job", "with_profile", "objective", "losses_per_node_s", "burst_weights")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WITH_PROFILE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    LOSSES_PER_NODE_S_FIELD_NUMBER: _ClassVar[int]
    BURST_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    with_profile: bool
    objective: str
    losses_per_node_s: float
    burst_weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, job: _Optional[str] = ..., with_profile: bool = ..., objective: _Optional[str] = ..., losses_per_node_s: _Optional[float] = ..., burst_weights: _Optional[_Iterable[float]] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("plan_json", "reason", "change", "explanation_json", "profile_json")
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_JSON_FIELD_NUMBER: _ClassVar[int]
    PROFILE_JSON_FIELD_NUMBER: _ClassVar[int]
    plan_json: bytes
    reason: str
    change: str
    explanation_json: bytes
    profile_json: bytes
    def __init__(self, plan_json: _Optional[bytes] = ..., reason: _Optional[str] = ..., change: _Optional[str] = ..., explanation_json: _Optional[bytes] = ..., profile_json: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job", "user")
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    job: str
    user: str
    def __init__(self, job: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node", "user")
    NODE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    node: str
    user: str
    def __init__(self, node: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class DrainNodeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PoolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PoolsReply(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolStatus]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolStatus, _Mapping]]] = ...) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("pool", "provider", "running", "starting", "leaving", "stopped", "desired", "wanted", "min", "max", "price", "reason", "retry_in_s", "read_ago_s", "warnings")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_S_FIELD_NUMBER: _ClassVar[int]
    READ_AGO_S_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    provider: str
    running: int
    starting: int
    leaving: int
    stopped: int
    desired: int
    wanted: int
    min: int
    max: int
    price: float
    reason: str
    retry_in_s: float
    read_ago_s: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., provider: _Optional[str] = ..., running: _Optional[int] = ..., starting: _Optional[int] = ..., leaving: _Optional[int] = ..., stopped: _Optional[int] = ..., desired: _Optional[int] = ..., wanted: _Optional[int] = ..., min: _Optional[int] = ..., max: _Optional[int] = ..., price: _Optional[float] = ..., reason: _Optional[str] = ..., retry_in_s: _Optional[float] = ..., read_ago_s: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("kind", "name", "ttl_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    kind: TokenKind
    name: str
    ttl_s: float
    def __init__(self, kind: _Optional[_Union[TokenKind, str]] = ..., name: _Optional[str] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ("token", "id")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    token: str
    id: str
    def __init__(self, token: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class TokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenStatus]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenStatus, _Mapping]]] = ...) -> None: ...

class TokenStatus(_message.Message):
    __slots__ = ("id", "kind", "name", "created_at", "expires_at", "state", "created_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: TokenKind
    name: str
    created_at: float
    expires_at: float
    state: str
    created_by: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[TokenKind, str]] = ..., name: _Optional[str] = ..., created_at: _Optional[float] = ..., expires_at: _Optional[float] = ..., state: _Optional[str] = ..., created_by: _Optional[str] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("id", "node")
    ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    id: str
    node: str
    def __init__(self, id: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

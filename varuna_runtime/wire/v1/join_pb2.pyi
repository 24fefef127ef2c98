from varuna_runtime.wire.v1 import agent_pb2 as _agent_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("token_id", "secret", "node", "csr_pem")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    secret: str
    node: str
    csr_pem: bytes
    def __init__(self, token_id: _Optional[str] = ..., secret: _Optional[str] = ..., node: _Optional[str] = ..., csr_pem: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: _agent_pb2.Certificate
    def __init__(self, certificate: _Optional[_Union[_agent_pb2.Certificate, _Mapping]] = ...) -> None: ...

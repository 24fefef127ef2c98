"""Durable events as bytes for the journal; pure, no storage here."""

import json
from typing import get_args

from varuna_manager.core.events import AnyEvent, Durable
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput

_KINDS: dict[str, type[Durable]] = {kind.__name__: kind for kind in get_args(Durable)}


def is_durable(event: AnyEvent) -> bool:
    """Return True if the event must be journaled before its actions are dispatched."""
    return isinstance(event, Durable)


def kind_of(event: AnyEvent) -> str:
    """Return the name the journal keeps for the event's kind."""
    return type(event).__name__


def encode(event: Durable) -> bytes:
    """Return the canonical JSON of a durable event, with its kind."""
    return b'{"kind":"' + kind_of(event).encode() + b'","fields":' + canonical.dumps(event) + b"}"


def decode(data: bytes) -> Durable:
    """Return the event of `encode`; raises InvalidInput on an unknown kind or fields that do not fit."""
    try:
        record = json.loads(data)
        kind, fields = record["kind"], record["fields"]
    except (ValueError, KeyError, TypeError) as err:
        raise InvalidInput(f"not a journal record: {data[:80]!r}") from err
    if kind not in _KINDS:
        raise InvalidInput(f"the journal holds an event of kind {kind!r}, which this version does not know")
    return canonical.loads(_KINDS[kind], json.dumps(fields))

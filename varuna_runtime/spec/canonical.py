"""Canonical JSON of the spec's records: one byte string per value, so that hashes agree everywhere."""

import hashlib
import json
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from varuna_runtime.spec.errors import InvalidInput

T = TypeVar("T")


def dumps(value: object) -> bytes:
    """Return the canonical JSON of a dataclass or pydantic record: sorted keys, no spaces, UTF-8."""
    plain = _adapter(cast(Hashable, type(value))).dump_python(value, mode="json")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def quick_dumps(value: object) -> bytes:
    """Return JSON that `loads` reads, much faster than the canonical one; its bytes compare to nothing."""
    return _adapter(cast(Hashable, type(value))).dump_json(value)


def loads(kind: type[T], text: bytes | str) -> T:
    """Return the record of type `kind`; raises InvalidInput on anything but a valid encoding of it."""
    try:
        value: T = _adapter(cast(Hashable, kind)).validate_json(text)
    except ValidationError as err:
        raise InvalidInput(f"not a valid {kind.__name__}: {_first_of(err)}") from err
    return value


def make_ready(*kinds: type) -> None:
    """Have these kinds ready, so that their first use costs no more than the others."""
    for kind in kinds:
        _adapter(cast(Hashable, kind))


def _first_of(err: ValidationError) -> str:
    """Return one line about the first mistake: where it is and what is wrong with it."""
    first, *others = err.errors(include_url=False, include_context=False, include_input=False)
    where = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}{first['msg']}{more}"


def digest(value: object) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(dumps(value)).hexdigest()


@lru_cache(maxsize=256)
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(type, kind))

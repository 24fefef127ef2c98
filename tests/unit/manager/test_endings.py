"""What a job left in the store at its end; that it is believed, tests/integration/test_manager.py shows."""

from pathlib import Path

import pytest

from varuna_manager.endings import ending_of
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.manifest import Ending, ending_key
from varuna_runtime.store import open_store


def test_an_ending_is_read_as_it_was_put(tmp_path: Path) -> None:
    ending = Ending(generation=3, step=120, weights_sha256="ab")
    open_store(tmp_path.as_uri()).put(ending_key("j"), canonical.dumps(ending))
    assert ending_of("j", tmp_path.as_uri()) == ending
    assert ending_of("k", tmp_path.as_uri()) is None


def test_a_damaged_ending_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path.as_uri()).put(ending_key("j"), b'{"generation": 3')
    with pytest.raises(InvalidInput):
        ending_of("j", tmp_path.as_uri())

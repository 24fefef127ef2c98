"""Opening a pool of Compute Engine: where credentials come from, and where they never go."""

import subprocess
import sys

import pytest

from varuna_manager.cloud.gcp.errors import first_error, trouble_of
from varuna_manager.cloud.provider import Trouble

_OPEN = """
import os, sys
{before}
os.environ.pop("VARUNA_GCP_ENDPOINT", None)
os.environ.update({environment})
from varuna_manager.cloud.opening import open_provider
from varuna_manager.home import Home
from varuna_manager.pool_settings import GcpPool
from tests.support.notes import MemoryNotes
from pathlib import Path
pool = GcpPool(name="p", provider="gcp", project="p", group="g", zone="z")
try:
    provider = open_provider(pool, notes=MemoryNotes(), home=Home(Path("/tmp")), manager_address="")
    provider.read(0.0)
except Exception as err:
    print(type(err).__name__, getattr(err, "trouble", ""), err)
print([name for name in ("google.auth", "google.cloud") if name in sys.modules])
"""


def opened(before: str = "", **environment: str) -> list[str]:
    program = _OPEN.format(before=before, environment=environment)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_another_endpoint_is_asked_without_credentials() -> None:
    said, modules = opened(VARUNA_GCP_ENDPOINT="http://127.0.0.1:1")
    assert said.startswith("ProviderError retry")
    assert modules == "[]"


def test_missing_credentials_are_a_persons_matter_and_the_heavy_library_stays_out() -> None:
    said, modules = opened(
        GOOGLE_APPLICATION_CREDENTIALS="/nowhere.json", CLOUDSDK_CONFIG="/nowhere", NO_GCE_CHECK="true"
    )
    assert said.startswith("ProviderError auth no credentials for Google")
    assert modules == "['google.auth']"


def test_missing_libraries_are_named_with_what_to_install() -> None:
    said, _ = opened(before="sys.modules['google.auth'] = None")
    assert said.startswith("InvalidInput")
    assert "pip install 'varuna[gcp]'" in said


@pytest.mark.parametrize(
    ("code", "message", "trouble"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "", Trouble.CAPACITY),
        ("X", "The zone does not have enough resources available", Trouble.CAPACITY),
        ("QUOTA_EXCEEDED", "", Trouble.QUOTA),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "Operation rate exceeded", Trouble.THROTTLED),
        ("RATE_LIMIT_EXCEEDED", "Quota exceeded for quota metric 'Queries' per minute", Trouble.THROTTLED),
        ("INTERNAL_ERROR", "", Trouble.RETRY),
        ("RESOURCE_NOT_READY", "", Trouble.RETRY),
        ("CONDITION_NOT_MET", "", Trouble.CONFIG),
        ("NEW", "words", Trouble.UNKNOWN),
    ],
)
def test_errors_are_known_by_code_before_message(code: str, message: str, trouble: Trouble) -> None:
    assert trouble_of(code, message) is trouble


def test_what_holds_no_error_has_none() -> None:
    holders: list[dict[str, object]] = [{}, {"error": {}}, {"errors": {"errors": []}}]
    assert [first_error(holder) for holder in holders] == [None, None, None]

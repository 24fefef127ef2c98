"""What the manager puts somewhere is what an agent finds there: real SDKs against doubles of their clouds."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clouds.fake_azure import FakeAzure
from tests.support.clouds.moto import IDENTITY, REGION, Moto
from varuna_manager.security import places
from varuna_manager.security.handover import HandOverFailed, TicketPlace
from varuna_runtime.agent import tickets
from varuna_runtime.agent.tickets import TicketSource, TicketUnavailable
from varuna_runtime.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The manager's end and a machine's end of one hand-over."""

    place: TicketPlace
    source: TicketSource


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Have these variables: the SDKs read their settings there."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def aws() -> Iterator[Moto]:
    with Moto() as cloud, environment(**IDENTITY, AWS_ENDPOINT_URL=cloud.url):
        yield cloud


@pytest.fixture(scope="module", params=["ssm", "keyvault", "store"])
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    folder = tmp_path_factory.mktemp("handover")
    with ExitStack() as held:
        url, region = f"file://{folder}", ""
        if request.param == "ssm":
            request.getfixturevalue("aws")
            url, region = "ssm:/varuna/join", REGION
        elif request.param == "keyvault":
            azure = held.enter_context(FakeAzure(folder))
            held.enter_context(environment(**azure.environment))
            url = f"keyvault:{azure.endpoint}"
        yield Ends(place=places.opened(url, region=region), source=tickets.opened(url))


def test_a_machine_finds_its_own_ticket_and_no_other(ends: Ends) -> None:
    ends.place.put("i-0a", "ticket-a")
    ends.place.put("pool_0", "ticket-0")
    assert ends.source.read("i-0a") == "ticket-a"
    assert ends.source.read("pool_0") == "ticket-0"
    assert ends.source.read("pool-0") is None
    assert ends.source.waits


def test_a_newer_ticket_takes_the_place_of_an_older_one(ends: Ends) -> None:
    for text in ("first", "second"):
        ends.place.put("i-0b", text)
    assert ends.source.read("i-0b") == "second"


def test_what_is_taken_away_is_gone_and_taking_away_again_is_fine(ends: Ends) -> None:
    ends.place.put("i-0c", "ticket")
    ends.place.remove("i-0c")
    ends.place.remove("i-0c")
    ends.place.remove("never-there")
    assert ends.source.read("i-0c") is None
    ends.place.put("i-0c", "again")
    assert ends.source.read("i-0c") == "again"


def test_a_secret_parameter_is_stored_encrypted(aws: Moto) -> None:
    places.opened("ssm:/varuna/sealed", region=REGION).put("i-1", "ticket")
    (found,) = aws.client("ssm").get_parameters_by_path(Path="/varuna/sealed")["Parameters"]
    assert found["Type"] == "SecureString"
    assert found["Name"] == "/varuna/sealed/i-1"


def test_a_cloud_out_of_reach_is_told_as_such(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    with environment(**IDENTITY, AWS_ENDPOINT_URL=nobody, AWS_MAX_ATTEMPTS="1"):
        with pytest.raises(HandOverFailed, match="ssm:/varuna/join"):
            places.opened("ssm:/varuna/join", region=REGION).put("i-1", "ticket")
        with pytest.raises(TicketUnavailable):
            tickets.opened("ssm:/varuna/join").read("i-1")


@pytest.mark.parametrize("text", ["", "here", "ssm:", "ssm:varuna", "ssm:/var una", "keyvault:http://x"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="handover: seen"):
        places.opened(text)


def test_a_file_and_standard_input_give_what_they_have_at_once(tmp_path: Path) -> None:
    (tmp_path / "ticket").write_text("text\n")
    assert tickets.opened(str(tmp_path / "ticket")).read("n") == "text"
    assert tickets.opened(str(tmp_path / "none")).read("n") is None
    assert not tickets.opened("-").waits

import json

import pytest

from tests.support.core_records import BATCH, MODEL, PROFILE, job_spec, plan_for
from tests.support.core_sim import Sim
from varuna_manager.core import events as e
from varuna_manager.core.journal import decode, encode, is_durable, kind_of
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Infeasible


@pytest.mark.parametrize(
    "event",
    [
        e.JobSubmitted(
            at_s=1.5, job="j", spec=job_spec("j"), model=MODEL, bundle="b", user="u", request_id="r"
        ),
        e.ProfileReady(at_s=1.0, job="j", profile=PROFILE),
        e.PlanMade(at_s=1.0, job="j", pool_version=3, outcome=plan_for([("a", 1)], BATCH)),
        e.PlanMade(at_s=1.0, job="j", pool_version=3, outcome=Infeasible(reason="no", change="more")),
        e.DeadlinePassed(at_s=2.0, subject="node:a", deadline_s=0.1 + 0.2),
    ],
    ids=kind_of,
)
def test_an_event_survives_the_journal(event: e.Durable) -> None:
    assert decode(encode(event)) == event


def test_a_whole_history_survives_the_journal() -> None:
    sim = Sim()
    sim.join("a")
    sim.submit("j")
    sim.finish("j")
    assert [decode(encode(event)) for event in sim.journal] == sim.journal


def test_the_record_names_its_kind_and_its_fields() -> None:
    record = json.loads(encode(e.ProfileMissing(at_s=1.0, job="j")))
    assert record == {"kind": "ProfileMissing", "fields": {"at_s": 1.0, "job": "j"}}


@pytest.mark.parametrize(
    "data",
    [
        b'{"kind":"BeatSeen","fields":{}}',
        b'{"kind":"Invented","fields":{}}',
        b'{"kind":"ProfileMissing","fields":{"job":3}}',
        b'{"kind":"ProfileMissing"}',
        b"[]",
        b"not json",
    ],
)
def test_what_is_no_known_durable_event_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode(data)


def test_beats_steps_and_ticks_are_volatile() -> None:
    assert not is_durable(e.Ticked(at_s=1.0))
    assert not is_durable(e.BeatSeen(at_s=1.0, node="a", incarnation="1", running=()))
    assert is_durable(e.ProfileMissing(at_s=1.0, job="j"))

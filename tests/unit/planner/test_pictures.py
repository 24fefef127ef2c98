import json
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

from tests.support.pipelines import uniform
from varuna_manager.planner.chrome_trace import chrome_trace
from varuna_manager.planner.picture import REPLICAS_MAX, picture
from varuna_manager.planner.recording import StepRecord, record
from varuna_manager.planner.simulate import simulate
from varuna_manager.planner.timing import Boundary, Pipeline


def drawn(num_micro: int = 6, replicas: int = 1) -> StepRecord:
    asked: Pipeline = replace(
        uniform(num_micro),
        boundaries=(Boundary(serial_s=0.25, latency_s=0.0),) * 3,
        micro_batches=(num_micro,) * replicas,
    )
    return record(asked, simulate(asked).step_s)


def test_a_trace_has_a_process_a_replica_and_every_op_and_message_once() -> None:
    events = json.loads(chrome_trace(drawn(replicas=2)))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert len([span for span in spans if span["cat"] in ("F", "B")]) == 4 * 2 * 6
    assert len([span for span in spans if span["cat"] == "message"]) == 3 * 2 * 6
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names[:3] == ["stage 0", "activations 0 to 1", "stage 1"]


def test_spans_of_a_thread_do_not_overlap_and_are_in_microseconds() -> None:
    events = [event for event in json.loads(chrome_trace(drawn()))["traceEvents"] if event["ph"] == "X"]
    for thread in {event["tid"] for event in events}:
        spans = [(span["ts"], span["ts"] + span["dur"]) for span in events if span["tid"] == thread]
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert max(event["ts"] + event["dur"] for event in events) == drawn().step_s * 1e6


def test_a_picture_is_one_svg_with_a_row_a_stage_and_nothing_from_outside() -> None:
    svg = picture(drawn(), "4x1 <test>")
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert [f"stage {s}" in texts for s in range(4)] == [True] * 4
    assert "forward" in texts
    assert "4x1 <test>" in texts
    assert "href" not in svg


def test_a_picture_draws_the_first_replicas_only() -> None:
    assert picture(drawn(replicas=9), "").count("stage 0<") == REPLICAS_MAX

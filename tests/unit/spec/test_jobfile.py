"""Reading a job file: what a good one gives, and how mistakes are told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varuna_runtime.spec.job import Exactness, JobSpec
from varuna_runtime.spec.jobfile import Mistake, locate, parse
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.yamlfile import Located
from varuna_runtime.spec.yamltext import MAX_BYTES

MINIMAL = "name: gpt\nentrypoint: train.py\nbatch_size: 32\n"
FULL = """\
name: gpt
entrypoint: train.py
args: [--lr, "0.1"]
workdir: src
env: {LEVEL: "3", FLAG: yes}
secrets: [TOKEN]
setup: |
  pip install x
nodes: {min: 2, max: 8}
batch_size: 64
micro_batch_size: 4
virtual_replicas: 8
layout: {stages: 2, replicas: auto}
schedule: 1f1b
precision: bf16
exactness: statistical
seed: 7
epochs: 2
clip_grad_norm: 1
checkpoint: {store: "file:///srv/store", interval_steps: 50, keep: 2}
retries: {user_error: 1}
max_run_time_s: 3600
"""


def mistakes(text: str) -> tuple[Mistake, ...]:
    found = parse(text, source="job.yaml")
    assert isinstance(found, tuple)
    return found


def test_a_minimal_file_takes_the_defaults() -> None:
    expected = JobSpec(name="gpt", entrypoint="train.py", batch_size=32)
    assert parse(MINIMAL, source="job.yaml") == expected


def test_a_full_file_gives_every_field() -> None:
    spec = parse(FULL, source="job.yaml")
    assert isinstance(spec, JobSpec)
    assert spec.args == ("--lr", "0.1")
    assert spec.env == {"LEVEL": "3", "FLAG": "yes"}
    assert spec.schedule is ScheduleKind.ONE_F_ONE_B
    assert spec.exactness is Exactness.STATISTICAL
    assert (spec.layout.stages, spec.layout.replicas) == (2, "auto")
    assert spec.clip_grad_norm == 1.0
    assert spec.setup == "pip install x\n"


def test_a_larger_file_than_allowed_is_refused_unread() -> None:
    (found,) = mistakes(MINIMAL + "# " + "x" * MAX_BYTES)
    assert found.wanted == f"a file of at most {MAX_BYTES} bytes"


def test_a_mistake_carries_its_place() -> None:
    (found,) = mistakes(MINIMAL + "nodes:\n    max: 0\n")
    assert (found.line, found.column, found.path) == (5, 5, "nodes.max")


def test_a_check_of_the_outside_world_finds_the_line_of_its_key() -> None:
    found = locate(MINIMAL + "layout:\n  stages: 9\n", source="job.yaml")
    assert isinstance(found, Located)
    told = found.mistake(("layout", "stages"), seen='"9"', wanted="at most 4")
    assert str(told) == 'job.yaml:5: layout.stages: seen "9", wanted at most 4'
    assert found.mistake(("workdir",), seen="x", wanted="y").line == 1


def test_keys_in_the_url_of_a_store_are_refused_and_not_repeated() -> None:
    (found,) = mistakes(MINIMAL + "checkpoint: {store: 's3://AKIA:hush@bucket/x'}\n")
    assert found.path == "checkpoint.store"
    assert "hush" not in str(found)


def test_mistakes_come_in_the_order_of_their_lines() -> None:
    found = mistakes("seed: x\nname: A B\nbatch_size: 0\nentrypoint: /x\n")
    assert [m.line for m in found] == [1, 2, 3, 4]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("abn:-[]{}&*!|>'\"#%@`?,\n\t 019.~\x00é"), max_size=60))
def test_any_text_is_read_or_refused_but_never_crashes(text: str) -> None:
    assert isinstance(parse(MINIMAL + text, source="job.yaml"), JobSpec | tuple)


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n"])
def test_line_numbers_hold_for_every_kind_of_newline(newline: str) -> None:
    (found,) = mistakes((MINIMAL + "seed: -1\n").replace("\n", newline))
    assert found.line == 4

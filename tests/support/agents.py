"""Real agent processes with a small job, for tests that play the manager themselves."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.support.bundles import upload
from tests.support.fake_manager import FakeManager
from varuna_runtime.agent import guard
from varuna_runtime.spec import canonical
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import open_store
from varuna_runtime.wire.v1 import agent_pb2, common_pb2

JOB = "toy-1"
SCRIPT = """
import os, subprocess, sys, time
import torch
from torch import nn
import varuna_runtime as varuna

class Data:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("SAMPLE_S", "0")))
        exec(os.environ.get("IN_SAMPLE", ""))
        x = torch.randn(4)
        return x, x.sum().reshape(1)

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))

def loss(output, batch):
    return ((output - batch[1]) ** 2).sum(), torch.tensor(float(len(output)))

if __name__ == "__main__":
    print("script begins", flush=True)
    exec(os.environ.get("AT_IMPORT", ""))
    varuna.train(
        model=model, loss=loss, optimizer=lambda named: torch.optim.AdamW(named, lr=0.01),
        dataset=Data(), batch_size=8, steps=6,
        evaluation=globals().get("EVALUATION"), callbacks=globals().get("CALLBACKS", ()),
    )
"""


class ToyJob:
    """A bundle in a store, and the messages that start it."""

    def __init__(self, folder: Path, **spec: object) -> None:
        self.store_url = f"file://{folder / 'store'}"
        workdir = folder / "workdir"
        workdir.mkdir(parents=True)
        (workdir / "train.py").write_text(SCRIPT)
        self.bundle = upload(open_store(self.store_url), workdir).sha256
        fields = {"name": "toy", "entrypoint": "train.py", "batch_size": 8, "steps": 6} | spec
        self.spec = JobSpec.model_validate(fields)
        plain = JobSpec(name="toy", entrypoint="train.py", batch_size=8, steps=6)
        self.model = canonical.loads(ModelRecord, inspected(canonical.dumps(plain)))

    def plan(self, layout: Layout, nodes: tuple[str, ...]) -> Plan:
        last = len(self.model.segments)
        cuts = [s * last // layout.stages for s in range(layout.stages + 1)]
        return Plan(
            layout=layout,
            stages=tuple(Stage(first=a, last=b, recompute=False) for a, b in pairwise(cuts)),
            schedule=ScheduleKind.ONE_F_ONE_B,
            batch=BatchShape(batch_size=8, micro_batch_size=2, virtual_replicas=2),
            placement=tuple(Slot(node=nodes[r % len(nodes)], index=r) for r in range(layout.world_size)),
            predicted_step_s=0.1,
        )

    def start(
        self,
        generation: int,
        plan: Plan,
        *,
        ranks: tuple[int, ...] = (),
        resume_step: int | None = None,
        kind: common_pb2.GenerationKind = common_pb2.GenerationKind.TRAIN,
        bundle: str = "",
    ) -> agent_pb2.Start:
        return agent_pb2.Start(
            generation_secret="known to the ranks of the generation",
            job=JOB,
            generation=generation,
            kind=kind,
            plan_json=canonical.dumps(plan),
            job_json=canonical.dumps(self.spec),
            model_json=canonical.dumps(self.model),
            ranks=ranks or tuple(range(plan.layout.world_size)),
            bundle=bundle or self.bundle,
            store_url=self.store_url,
            bundle_store_url=self.store_url,
            resume_step=resume_step,
        )


@cache
def inspected(job_json: bytes) -> str:
    """The toy's model record; once for all tests, since it takes a second or more."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        job, script = Path(folder, "job.json"), Path(folder, "train.py")
        job.write_bytes(job_json)
        script.write_text(SCRIPT)
        command = ["-m", "varuna_runtime.worker.inspection", "--job", str(job), "--workdir", folder]
        subprocess.run(
            [sys.executable, *command, "--fd", str(write_end), script.name],
            pass_fds=(write_end,),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        return json.dumps(json.loads(answer.read())["model"])


@contextmanager
def agent_process(
    manager: str, home: Path, node: str = "n1", options: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """An agent; killed at the end if it is still there, with all it started."""
    home.mkdir(parents=True, exist_ok=True)
    arguments = ["--manager", manager, "--node", node, "--home", str(home), "--slots", "4", *options]
    with (home / "agent.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "varuna_runtime.agent", *arguments],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)


def marked_processes(manager: FakeManager, session: int = -1) -> tuple[int, ...]:
    """Processes of an agent's incarnation."""
    return guard.marked(f"VARUNA_INCARNATION={manager.sessions[session].hello.incarnation}")

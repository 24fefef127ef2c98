"""A real manager process on loopback, and submissions for it."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.support.fake_agent import profile_of
from varuna_manager import serving
from varuna_manager.client import Client, JobStatus, Submission, access_of
from varuna_manager.home import Home
from varuna_runtime.spec.errors import NoManager
from varuna_runtime.spec.job import JobSpec, Nodes
from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord
from varuna_runtime.spec.tickets import user_token
from varuna_runtime.store import open_store

WAIT_S = 120.0
_MAIN = (
    "import sys; from pathlib import Path; from varuna_manager import config, daemon;"
    "daemon.run(config.load(Path(sys.argv[1])))"
)


class ManagerProcess:
    """Starts, kills and starts again the manager of one home; `settings` go into manager.yaml.

    It runs in this process's environment, or in `environment`.
    """

    def __init__(
        self, root: Path, *, environment: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self.home = Home(root)
        self._environment = environment
        self._file = root / "manager.yaml"
        self._file.write_text(json.dumps({"home": str(root), **settings}))
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a process and do not wait for it."""
        log = self.home.root / "manager.err"
        with log.open("ab") as errors:
            command = [sys.executable, "-c", _MAIN, str(self._file)]
            return subprocess.Popen(command, stderr=errors, env=self._environment)

    def start(self) -> "ManagerProcess":
        self._process = process = self.spawn()
        eventually(lambda: process.poll() is not None or self._serves(process.pid))
        assert process.poll() is None, self.errors()
        eventually(self._answers)
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends by itself and return its exit status."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def client(self) -> Client:
        """Return a client; of a manager beyond loopback with the operator's own token."""
        found = serving.read(self.home)
        assert found is not None
        token = user_token(self.home.admin_token.read_text()) if found.is_tls else None
        return Client(found.address, access=None if token is None else access_of(token))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        found = serving.read(self.home)
        assert found is not None
        return found.address

    def errors(self) -> str:
        return (self.home.root / "manager.err").read_text()

    def upload(self) -> str:
        """Put a bundle into the store and return its name."""
        content = b"a bundle"
        name = hashlib.sha256(content).hexdigest()
        open_store(self.home.store_url).put(f"bundles/{name}.tar.gz", content)
        return name

    def _serves(self, pid: int) -> bool:
        found = serving.read(self.home)
        return found is not None and found.process.pid == pid

    def _answers(self) -> bool:
        """Whether a client of this process reaches it; after a restart its channels first back off."""
        try:
            with self.client() as client:
                client.nodes()
        except NoManager:
            return False
        return True

    def _end(self, signum: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(signum)
        code = self._process.wait(WAIT_S)
        self._process = None
        return code


def model(num_steps: int = 5, num_segments: int = 2) -> ModelRecord:
    segments = tuple(
        SegmentRecord(
            index=i,
            name=f"s{i}",
            tensors=(TensorRecord(name=f"s{i}.w", shape=(4, 4), dtype="float32"),),
            param_bytes=64,
        )
        for i in range(num_segments)
    )
    return ModelRecord(segments=segments, tied=(), num_samples=64, num_steps=num_steps)


def submission(bundle: str, request_id: str = "", **changes: object) -> Submission:
    """A small job for one node; `changes` are of its JobSpec, besides `num_steps` and `given` secrets."""
    num_steps, secrets = changes.pop("num_steps", 5), changes.pop("given", {})
    assert isinstance(num_steps, int)
    assert isinstance(secrets, dict)
    fields: dict[str, object] = {
        "name": "tiny",
        "entrypoint": "train.py",
        "batch_size": 8,
        "micro_batch_size": 4,
        "nodes": Nodes(min=1, max=1),
    }
    spec = JobSpec.model_validate({**fields, **changes})
    return Submission(
        spec=spec,
        model=model(num_steps),
        bundle=bundle,
        user="tester",
        request_id=request_id,
        secrets=secrets,
    )


def profiled(wanted: Submission) -> Submission:
    """The submission with a profile measured by the client."""
    return replace(wanted, profile=profile_of(wanted.model))


def eventually(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.02)


def until_over(client: Client, job: str) -> JobStatus:
    *_, last = client.watch(job)
    return last

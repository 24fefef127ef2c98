"""A whole installation on a cloud double: manager, machines, object store, faults; it leaves nothing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.clouds.azure_world import ScaleSet
from tests.support.clouds.azurite import azurite
from tests.support.clouds.bridge import Bridge
from tests.support.clouds.fake_azure import SUBSCRIPTION, FakeAzure
from tests.support.clouds.market import Market
from tests.support.clouds.metadata_server import MetadataServer
from tests.support.clouds.moto import IDENTITY, REGION, Group, Moto
from tests.support.clouds.relay import Relay
from tests.support.clouds.sites import AwsSite, AzureSite, Site
from tests.support.manager_process import ManagerProcess
from tests.support.pool import Pool, carriers, wait_until
from varuna_manager.client import Client, EventRecord, JobStatus, NodeStatus

MOST = 4
PATIENCE_S = 90.0
SIZING = {
    "poll_s": 0.5,
    "idle_release_s": 4.0,
    "boot_timeout_s": 25.0,
    "stray_grace_s": 1.0,
    "backoff_s": 1.0,
    "backoff_cap_s": 4.0,
    "leave_margin_s": 1.0,
}
_FOREIGN = ("VARUNA_", "AWS_", "AZURE_", "IDENTITY_", "MSI_")


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what would lead to a real cloud or another manager."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


@dataclass
class Installation:
    """A manager on a cloud double, and the machines that the double says exist."""

    site: Site
    bridge: Bridge
    manager: ManagerProcess
    cli: Pool
    relay: Relay  # between agents and manager
    calls: Callable[[], Mapping[str, int]]  # to the cloud's interface, by operation
    _client: Client | None = None
    _paces: list[Path] = field(default_factory=list)

    def client(self) -> Client:
        """Return a client of the manager; one after each start of it."""
        if self._client is None:
            self._client = self.manager.client()
        return self._client

    def kill_manager(self) -> None:
        """SIGKILL it."""
        self._close()
        self.manager.kill()

    def start_manager(self) -> None:
        """Start it again and wait until it serves."""
        self.manager.start()

    def submit(self, folder: Path, pause_s: float = 0.1) -> str:
        """Submit `folder`/job.yaml as a user does and return the job's id.

        Its micro-batches pause so long until `speed_up`, so that there is time to disturb it.
        """
        pace = folder / "pace"
        pace.write_text(str(pause_s))
        self._paces.append(pace)
        with (folder / "job.yaml").open("a") as file:
            file.write(f"env: {{PACE_FILE: {pace}}}\n")
        return self.cli.submit(folder)

    def speed_up(self) -> None:
        """Let every job run as fast as it can."""
        for pace in self._paces:
            pace.write_text("0")

    def status(self, job: str) -> JobStatus:
        """Return the job's status."""
        return self.client().job(job)

    def wait(self, job: str, until: Callable[[JobStatus], bool], patience_s: float = PATIENCE_S) -> JobStatus:
        """Wait until the job's status is as wanted; fails with all there is to see."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            status = self.status(job)
            if until(status):
                return status
            assert not status.is_over, f"ended as {status.state}\n{self.story(job)}"
            time.sleep(0.1)
        raise AssertionError(f"timed out\n{self.story(job)}")

    def wait_over(self, job: str, patience_s: float = 2 * PATIENCE_S) -> JobStatus:
        """Let the job run to its end and return its last status."""
        self.speed_up()
        status = self.wait(job, lambda s: s.is_over, patience_s)
        assert status.has_succeeded, self.story(job)
        return status

    def eventually(self, holds: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until `holds`; fails with all there is to see."""
        deadline = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}\n{self.story()}"
            time.sleep(0.1)

    def eventually_alone(self, holds: Callable[[], object], what: str) -> None:
        """Wait until `holds` while no manager is there to tell a story."""
        wait_until(lambda: bool(holds()), f"never: {what}", PATIENCE_S)

    def nodes(self) -> dict[str, NodeStatus]:
        """Return every node that the manager knows."""
        return {node.node: node for node in self.client().nodes()}

    def ready(self) -> list[str]:
        """Return the nodes that can be used."""
        return [n.node for n in self.nodes().values() if n.state == "READY"]

    def working(self, job: str) -> list[str]:
        """Return the nodes that hold ranks of the job, in the order of their lowest rank."""
        found = [n for n in self.nodes().values() if n.job == job and n.ranks]
        return [n.node for n in sorted(found, key=lambda n: min(n.ranks))]

    def events(self, job: str = "") -> list[EventRecord]:
        """Return the events of a job, or all."""
        return list(self.client().events(job))

    def told(self, what: str, node: str = "") -> list[EventRecord]:
        """Return the events of this kind, of one node if given."""
        return [e for e in self.events() if e.what == what and node in ("", e.node)]

    def is_quiet(self) -> bool:
        """Whether nothing costs money and nothing runs here but the manager."""
        return not (self.site.billed() or self.site.desired() or self.bridge.living())

    def wait_quiet(self) -> None:
        """Wait for that."""
        self.eventually(self.is_quiet, "no machine left")

    def story(self, job: str = "") -> str:
        """Return what happened, for a failure's message."""
        parts = [f"billed {self.site.billed()}, desired {self.site.desired()}, alive {self.bridge.living()}"]
        for words in (["status"], ["nodes"], ["pools"], ["events"], *([["logs", job]] if job else [])):
            done = self.cli.run(*words, check=False)
            parts.append(f"--- {' '.join(words)}\n{done.stdout[-8000:]}{done.stderr[-2000:]}")
        parts.append(f"--- manager\n{self.manager.errors()[-4000:]}")
        parts += [
            f"--- {path.parent.name}\n{path.read_text()[-1500:]}"
            for path in sorted(self.bridge.folder.glob("*/agent.log"))
        ]
        return "\n".join(parts)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@contextmanager
def on_aws(folder: Path, **settings: Any) -> Iterator[Installation]:
    """Run an installation on an empty Auto Scaling group of up to four machines."""
    with ExitStack() as held:
        moto = held.enter_context(Moto())
        market = held.enter_context(Market(moto))
        moto.client("s3").create_bucket(Bucket="varuna-e2e")
        site = AwsSite(Group(moto).create(0, most=MOST), market)
        cloud = {**IDENTITY, "AWS_ENDPOINT_URL": moto.url, "AWS_ALLOW_HTTP": "true"}
        faulty = {"AWS_ENDPOINT_URL_AUTO_SCALING": market.url, "AWS_ENDPOINT_URL_EC2": market.url}

        def environment(metadata: MetadataServer) -> dict[str, str]:
            """A machine's identity is its role's, out of the metadata service."""
            return clean_environment(
                VARUNA_IMDS_ENDPOINT=metadata.url,
                AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url,
                AWS_METADATA_ENDPOINT=metadata.url,
                AWS_DEFAULT_REGION=REGION,
                AWS_ENDPOINT_URL=moto.url,
                AWS_ALLOW_HTTP="true",
            )

        pool = {
            "name": "spot",
            "provider": "aws",
            "group": site.group.name,
            "region": REGION,
            "max": MOST,
            "handover": "ssm:/varuna/join",
        }
        yield held.enter_context(
            _installation(
                folder,
                site,
                words=["--cloud", "aws", "--join", "ssm:/varuna/join"],
                agent_environment=environment,
                environment=clean_environment(**cloud, **faulty),
                calls=market.calls,
                store="s3://varuna-e2e/jobs",
                pools=[pool],
                **settings,
            )
        )


@contextmanager
def on_azure(folder: Path, *, is_flexible: bool = False, **settings: Any) -> Iterator[Installation]:
    """Run an installation on an empty scale set of up to four machines."""
    with ExitStack() as held:
        azure = held.enter_context(FakeAzure(folder / "azure"))
        blobs = held.enter_context(azurite())
        blobs.make_container("varuna-e2e")
        with azure.locked() as world:
            world.add(ScaleSet(name="pool", is_flexible=is_flexible))
        site = AzureSite(azure, "pool")

        def environment(metadata: MetadataServer) -> dict[str, str]:
            return clean_environment(
                VARUNA_IMDS_ENDPOINT=metadata.url, **azure.environment, **blobs.environment
            )

        vault = f"keyvault:{azure.endpoint}"
        pool = {
            "name": "spot",
            "provider": "azure",
            "subscription": SUBSCRIPTION,
            "resource_group": "rg",
            "scale_set": "pool",
            "max": MOST,
            "handover": vault,
        }
        yield held.enter_context(
            _installation(
                folder,
                site,
                words=["--cloud", "azure", "--join", vault],
                agent_environment=environment,
                environment=clean_environment(**azure.environment, **blobs.environment),
                calls=lambda: azure.calls,
                store="az://varuna-e2e/jobs",
                pools=[pool],
                **settings,
            )
        )


@contextmanager
def _installation(
    folder: Path,
    site: Site,
    *,
    words: list[str],
    agent_environment: Callable[[MetadataServer], Mapping[str, str]],
    environment: dict[str, str],
    calls: Callable[[], Mapping[str, int]],
    **settings: Any,
) -> Iterator[Installation]:
    home, machines = folder / "home", folder / "machines"
    home.mkdir(parents=True)
    environment = {**environment, "VARUNA_HOME": str(home)}
    sizing = {**SIZING, **settings.pop("sizing", {})}
    relay = Relay(lambda: manager.address)
    config = {"security": "tls", "advertise": relay.address, "sizing": sizing, **settings}
    manager = ManagerProcess(home, environment=environment, **config)
    bridge = Bridge(site, machines, words=[*words, "--memory", "2G"], environment=agent_environment)
    cli = Pool(home=home, env=environment)
    made = Installation(site=site, bridge=bridge, manager=manager, cli=cli, relay=relay, calls=calls)
    try:
        with relay, bridge:
            manager.start()
            yield made
    finally:
        made.kill_manager()
        wait_until(lambda: not carriers(home), "the manager left processes behind")
        left = [node for node in bridge.seen if carriers(machines / node)]
        assert not left, f"machines that are gone left processes behind: {left}"


@dataclass(frozen=True)
class Truth:
    """What an undisturbed run on one process gives."""

    weights_sha256: str
    losses: tuple[str, ...] = field(repr=False)


def undisturbed(folder: Path) -> Truth:
    """Train the job in `folder` alone, without manager, agents or pauses."""
    result = folder / "result.json"
    environment = clean_environment(VARUNA_JOB=str(folder / "job.yaml"), RESULT_FILE=str(result))
    script = next(
        line.split(":")[1].strip()
        for line in (folder / "job.yaml").read_text().splitlines()
        if line.startswith("entrypoint:")
    )
    subprocess.run([sys.executable, script], cwd=folder, env=environment, check=True, timeout=300)
    answer = json.loads(result.read_text())
    return Truth(weights_sha256=answer["weights_sha256"], losses=tuple(answer["losses"]))

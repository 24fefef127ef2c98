"""What an agent is told at its start, and where it keeps things; the only reader of its environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from varuna_runtime.agent.clouds import ENDPOINTS
from varuna_runtime.agent.notices.opening import Notices
from varuna_runtime.agent.sockets import OUTSIDE_PREFIX
from varuna_runtime.spec.errors import InvalidInput

_OURS_ALONE = ("VARUNA_JOIN", "VARUNA_TOKEN")  # whoever started us may have a token
_SOCKET_PATH_LIMIT = 100  # sun_path holds 107 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One agent. What is left out, such as `slots` or `memory_bytes` (per slot), is found out."""

    node: str
    manager: str = ""  # host:port; empty: as the join ticket or the credentials say
    join: str = ""  # where the join ticket is; empty: none is needed, or the node has joined before
    home: Path  # this node's own folder
    slots: int = 0  # 0: one per GPU, one without any
    insecure_plaintext: bool = False  # without a ticket, speak plain text to a manager of another machine too
    host: str = ""  # address that peers of the data plane reach; empty: that of the way to the manager
    device_kind: str = ""
    memory_bytes: int = 0
    copies_bytes: int | None = None  # that copies of state may take of the machine's memory; 0: keep none
    notices: Notices = Notices.FILE
    metadata_endpoint: str = ""  # base URL of the cloud's metadata service
    drain_on_term_s: float = 0.0  # SIGTERM leaves so long for the hand-over of the work
    silence_s: float = 5.0  # a worker without a sign of life for so long is a hang
    frozen_s: float = 0.75  # a worker or launcher that is stopped for so long is ended
    launcher_s: float = 150.0  # bundle, setup command and imports together

    def __post_init__(self) -> None:
        """Refuse what would only fail later."""
        if not self.node or "/" in self.node:
            raise InvalidInput(f"node {self.node!r}: wanted a name without a slash")
        if self.copies_bytes is not None and self.copies_bytes < 0:
            raise InvalidInput(f"copies_bytes {self.copies_bytes}: wanted 0 or more")
        if self.slots < 0:
            raise InvalidInput(f"slots {self.slots}: wanted at least 1, or 0 for one per GPU")
        if self.manager and ":" not in self.manager:
            raise InvalidInput(f"manager {self.manager!r}: wanted HOST:PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where an incarnation keeps its files."""

    bundles: Path
    logs: Path
    run: Path  # sockets; removed with the incarnation
    notice: Path

    @property
    def shards(self) -> Path:
        """Copies of what this node last put to an object store; outlives the incarnation."""
        return self.bundles.parent / "shards"


def folders(home: Path, incarnation: str) -> Folders:
    """Return the folders; `sockets.make` makes `run`. A deep home gets its sockets under the temp dir."""
    run = home / "run" / incarnation[:8]
    if len(os.fsencode(run)) + len("/00000000.sock") > _SOCKET_PATH_LIMIT:
        run = Path(os.environ.get("TMPDIR", "/tmp")) / f"{OUTSIDE_PREFIX}{incarnation[:12]}"
    return Folders(bundles=home / "bundles", logs=home / "logs", run=run, notice=home / "notice.json")


def child_environment() -> dict[str, str]:
    """Return this process's environment for those it starts, without what opens the manager's door."""
    return {name: value for name, value in os.environ.items() if name not in _OURS_ALONE}


def insecure_plaintext() -> bool:
    """Return whether plain text beyond this machine was asked for by name, by VARUNA_INSECURE_PLAINTEXT."""
    return os.environ.get("VARUNA_INSECURE_PLAINTEXT") == "1"


def join_source() -> str:
    """Return where the join ticket is, by VARUNA_JOIN; empty if that does not say."""
    return os.environ.get("VARUNA_JOIN", "")


def azure_authority() -> str:
    """Return the PEM file of who vouches for a Key Vault that is not Azure's own; empty for Azure's."""
    return os.environ.get("VARUNA_AZURE_CA", "")


def metadata_endpoint(cloud: str) -> str:
    """Return the base URL of a cloud's metadata service, or VARUNA_IMDS_ENDPOINT; empty for no cloud."""
    return os.environ.get("VARUNA_IMDS_ENDPOINT") or ENDPOINTS.get(cloud, "")

"""manager.yaml and the environment: the only module of the manager that reads either."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from varuna_manager import config_checks
from varuna_manager.home import Home
from varuna_manager.pool_settings import AnyPool, CloudPool, LocalPool, Sizing
from varuna_runtime.spec.addresses import is_loopback
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.yamlfile import Located, read

Seconds = Annotated[float, Field(gt=0)]


class ManagerConfig(BaseModel):
    """Settings of one manager; every field has a default that suits the embedded pool."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    home: str = ""
    """State home; default: $VARUNA_HOME, then ~/.varuna."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: any free port; the bound one is written to manager/manager.json."""
    security: Literal["auto", "tls"] = "auto"
    """auto: plain text on loopback, where everyone is let in, and TLS with tickets and tokens beyond it."""
    insecure_plaintext: bool = False
    """Plain text beyond loopback too: the control plane is then neither encrypted nor authenticated."""
    advertise: Annotated[str, StringConstraints(pattern=r"^[^\s/]*$")] = ""
    """HOST or HOST:PORT that others dial, for tickets and tokens; default: host, or for a wildcard the
    address of the interface with the default route."""
    certificate_life_s: Annotated[float, Field(ge=2)] = 86400.0
    """Certificates of nodes are good for this long; agents renew them at two thirds of it."""
    store: str = ""
    """URL of the object store of bundles, profiles and checkpoints; default: file:// below the home."""
    pools: Annotated[tuple[AnyPool, ...], Field(min_length=1)] = (LocalPool(name="local"),)
    """Who lends nodes; where several can, in the order of their use."""
    sizing: Sizing = Sizing()
    """How the pools follow the demand of the jobs."""
    beat_s: Seconds = 0.3
    """How often agents send a sign of life."""
    suspect_s: Seconds = 1.0
    """A node silent for this long is lost if the peers of its ranks hear nothing of it either."""
    lease_s: Seconds = 3.0
    """A node silent for this long is lost."""
    stop_on_disconnect_after_s: Seconds = 3600.0
    """How long agents keep their workers while the manager is away."""
    max_log_bytes_per_job: Annotated[int, Field(ge=4096)] = 256 * 2**20
    """Collected log lines beyond this are dropped, visibly."""

    @property
    def places(self) -> Home:
        """The state home's layout."""
        return Home(Path(self.home)) if self.home else default_home()

    @property
    def is_tls(self) -> bool:
        """Whether peers need a certificate or a token."""
        return self.security == "tls" or not (is_loopback(self.host) or self.insecure_plaintext)

    @property
    def store_url(self) -> str:
        """URL of the object store in use."""
        return self.store or self.places.store_url


def environment() -> dict[str, str]:
    """Return a copy of this process's environment, to look names up in or to hand on."""
    return dict(os.environ)


def azure_authority() -> str:
    """Return the PEM file of who vouches for a Key Vault that is not Azure's own; empty for Azure's."""
    return os.environ.get("VARUNA_AZURE_CA", "")


def default_home() -> Home:
    """Return $VARUNA_HOME, or ~/.varuna."""
    return Home(Path(os.environ.get("VARUNA_HOME") or Path.home() / ".varuna"))


def load(path: Path) -> ManagerConfig:
    """Return the settings in a YAML file; InvalidInput names every mistake with its line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as err:
        raise InvalidInput(f"{path}: cannot be read: {err}") from err
    if all(line.lstrip().startswith(("#", "---")) or not line.strip() for line in text.splitlines()):
        return checked(ManagerConfig())
    found = read(ManagerConfig, text, source=str(path), cross_checks=config_checks.cross_checks)
    if not isinstance(found, Located):
        raise InvalidInput("\n".join(map(str, found)))
    try:
        return checked(found.value)
    except InvalidInput as err:
        raise InvalidInput(f"{path}: {err}") from err


def checked(config: ManagerConfig) -> ManagerConfig:
    """Return the settings if they are safe together, else raise InvalidInput."""
    if config.security == "tls" and config.insecure_plaintext:
        raise InvalidInput("insecure_plaintext: seen true beside security: tls, wanted at most one of them")
    for pool in config.pools:
        if isinstance(pool, CloudPool) and pool.handover and not config.is_tls:
            raise InvalidInput(
                f"handover of pool {pool.name}: this manager speaks plain text and needs no join tickets; "
                "set security: tls, or leave handover out"
            )
    _check_silence(config)
    return config


def _check_silence(config: ManagerConfig) -> None:
    if config.suspect_s < 3 * config.beat_s:
        raise InvalidInput(
            f"suspect_s: seen {config.suspect_s:g}, wanted at least 3 x beat_s = {3 * config.beat_s:g}"
        )
    if config.lease_s < config.suspect_s:
        raise InvalidInput(
            f"lease_s: seen {config.lease_s:g}, wanted at least suspect_s = {config.suspect_s:g}"
        )

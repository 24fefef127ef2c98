"""Where the agent finds its join ticket: standard input, a file, or what its cloud hands over."""

import sys
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from varuna_runtime.agent.config import azure_authority
from varuna_runtime.spec.errors import InvalidInput, ObjectMissing
from varuna_runtime.spec.tickets import secret_name, store_key

# SDKs are imported where they are used: an agent needs at most one of them.


class TicketUnavailable(Exception):
    """The place cannot be asked just now, or will not answer us; it may later."""


class TicketSource(Protocol):
    """A place where this node's ticket is, or will be. Calls block."""

    waits: bool
    """The ticket may come later, and a new one after it."""

    def read(self, node: str) -> str | None:
        """Return the ticket's text; None if there is none (yet). TicketUnavailable: it cannot be told."""
        ...


def opened(source: str) -> TicketSource:
    """Return the source meant: `-`, a file, `ssm:/PATH`, `keyvault:https://VAULT`, or a store's URL."""
    if source == "-":
        return StandardInput()
    if source.startswith("ssm:/"):
        return ParameterStore(source.removeprefix("ssm:"))
    if source.startswith("keyvault:https://"):
        return KeyVault(source.removeprefix("keyvault:"))
    if "://" in source:
        return StoreFolder(source)
    return TicketFile(Path(source))


class StandardInput:
    """One line; read once, since it cannot be read again."""

    waits = False

    def __init__(self) -> None:
        self._line: str | None = None

    def read(self, node: str) -> str | None:
        """Return the line."""
        if self._line is None:
            self._line = sys.stdin.readline().strip()
        return self._line or None


class TicketFile:
    """A file of one line."""

    waits = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, node: str) -> str | None:
        """Return the file's text."""
        try:
            return self._path.read_text().strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as err:
            raise InvalidInput(f"--join {self._path}: the ticket cannot be read: {err}") from err


class ParameterStore:
    """AWS Systems Manager: a SecureString for each node, `PATH/NODE`."""

    waits = True

    def __init__(self, path: str) -> None:
        parts = urlsplit(path)
        self._path = parts.path.rstrip("/")
        self._region = parse_qs(parts.query).get("region", [""])[0]

    def read(self, node: str) -> str | None:
        """Return the parameter's value."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as err:
            raise InvalidInput("--join ssm: needs the AWS SDK: pip install 'varuna[aws]'") from err
        patience = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "max_attempts": 2})
        try:
            session = boto3.Session()
            region = self._region or session.region_name or _region_of_machine(session)
            client = session.client("ssm", region_name=region, config=patience)
            found = client.get_parameter(Name=f"{self._path}/{node}", WithDecryption=True)
        except ClientError as err:
            if err.response.get("Error", {}).get("Code") == "ParameterNotFound":
                return None
            raise TicketUnavailable(str(err)) from err
        except BotoCoreError as err:
            raise TicketUnavailable(str(err)) from err
        return str(found["Parameter"].get("Value", "")) or None


class KeyVault:
    """Azure Key Vault: a secret for each node; the machine's managed identity may read it.

    VARUNA_AZURE_CA names the PEM of who vouches for a vault that is not Azure's own.
    """

    waits = True

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, node: str) -> str | None:
        """Return the secret's value."""
        try:
            from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
            from azure.identity import DefaultAzureCredential
            from azure.keyvault.secrets import SecretClient
        except ModuleNotFoundError as err:
            raise InvalidInput("--join keyvault: needs the Azure SDK: pip install 'varuna[azure]'") from err
        options: dict[str, object] = {"connection_timeout": 5, "read_timeout": 10, "retry_total": 1}
        if authority := azure_authority():
            options |= {"connection_verify": authority, "verify_challenge_resource": False}
        try:
            with (
                DefaultAzureCredential() as credential,
                SecretClient(self._url, credential, **options) as client,
            ):
                return client.get_secret(secret_name(node)).value or None
        except ResourceNotFoundError:
            return None
        except HttpResponseError as err:
            if err.error is not None and err.error.code == "SecretDisabled":
                return None
            raise TicketUnavailable(err.message) from err
        except AzureError as err:
            raise TicketUnavailable(err.message) from err


class StoreFolder:
    """An object store, such as gs://BUCKET/PREFIX, that only the manager and the nodes can read."""

    waits = True

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, node: str) -> str | None:
        """Return the object's text."""
        from varuna_runtime.spec.errors import StoreError
        from varuna_runtime.store import open_store

        try:
            return open_store(self._url).get(store_key(node)).decode().strip() or None
        except ObjectMissing:
            return None
        except StoreError as err:
            raise TicketUnavailable(str(err)) from err


def _region_of_machine(session: object) -> str | None:
    """Ask the metadata service where this machine is; boto3 does not by itself."""
    from botocore.utils import IMDSRegionProvider

    return IMDSRegionProvider(session._session).provide()  # type: ignore[attr-defined, no-any-return]

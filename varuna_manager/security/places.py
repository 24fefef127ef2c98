"""The places that a pool's `handover` can name; each SDK is loaded when its place is opened."""

import re
from typing import Any
from urllib.parse import urlsplit

from varuna_manager.config import azure_authority
from varuna_manager.security.handover import HandOverFailed, TicketPlace
from varuna_runtime.spec.errors import InvalidInput, StoreError
from varuna_runtime.spec.tickets import secret_name, store_key
from varuna_runtime.store import open_store

_PATH = re.compile(r"/[A-Za-z0-9_.\-/]*[A-Za-z0-9_.\-]")
_DELETED_S = 60.0


def opened(handover: str, *, region: str = "") -> TicketPlace:
    """Return the place; InvalidInput when it is none that we know, or its SDK is missing."""
    if handover.startswith("ssm:"):
        return ParameterStore(handover.removeprefix("ssm:"), region)
    if handover.startswith("keyvault:https://"):
        return KeyVault(handover.removeprefix("keyvault:"))
    if "://" in handover and not handover.startswith("keyvault:"):
        return StoreFolder(handover)
    raise InvalidInput(
        f"handover: seen {handover!r}, wanted ssm:/PATH, keyvault:https://VAULT, or the URL of a private "
        "prefix of an object store"
    )


class ParameterStore:
    """AWS Systems Manager: one SecureString for each node, `PATH/NODE`."""

    def __init__(self, path: str, region: str) -> None:
        path = urlsplit(path).path
        if not _PATH.fullmatch(path):
            raise InvalidInput(f"handover: seen ssm:{path}, wanted a path such as ssm:/varuna/join")
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as err:
            raise InvalidInput("handover: ssm needs the AWS SDK: pip install 'varuna[aws]'") from err
        patience = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "max_attempts": 3})
        self._path = path
        self._client = boto3.client("ssm", region_name=region or None, config=patience)
        self._errors = (BotoCoreError, ClientError)

    def put(self, node: str, ticket: str) -> None:
        """Write the parameter."""
        try:
            self._client.put_parameter(
                Name=f"{self._path}/{node}", Value=ticket, Type="SecureString", Overwrite=True
            )
        except self._errors as err:
            raise HandOverFailed(f"ssm:{self._path}: {err}") from err

    def remove(self, node: str) -> None:
        """Delete the parameter."""
        try:
            self._client.delete_parameters(Names=[f"{self._path}/{node}"])  # a missing one is no error here
        except self._errors as err:
            raise HandOverFailed(f"ssm:{self._path}: {err}") from err


class KeyVault:
    """Azure Key Vault: one secret for each node.

    A deleted secret stays recoverable for days, and its name is taken until then: it is recovered, then
    written over.
    """

    def __init__(self, url: str) -> None:
        try:
            from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
            from azure.identity import DefaultAzureCredential
            from azure.keyvault.secrets import SecretClient
        except ModuleNotFoundError as err:
            raise InvalidInput("handover: keyvault needs the Azure SDK: pip install 'varuna[azure]'") from err
        options: dict[str, Any] = {"connection_timeout": 5, "read_timeout": 10, "retry_total": 2}
        if authority := azure_authority():
            options |= {"connection_verify": authority, "verify_challenge_resource": False}
        self._url = url
        self._client = SecretClient(url, DefaultAzureCredential(), **options)
        self._error, self._exists, self._missing = AzureError, ResourceExistsError, ResourceNotFoundError

    def put(self, node: str, ticket: str) -> None:
        """Write the secret."""
        name = secret_name(node)
        try:
            try:
                self._client.set_secret(name, ticket, content_type="varuna join ticket")
            except self._exists:
                self._client.begin_recover_deleted_secret(name).wait(_DELETED_S)
                self._client.set_secret(name, ticket, content_type="varuna join ticket")
        except self._error as err:
            raise HandOverFailed(f"keyvault:{self._url}: {err.message}") from err

    def remove(self, node: str) -> None:
        """Delete the secret."""
        try:
            self._client.begin_delete_secret(secret_name(node))
        except self._missing:
            return
        except self._error as err:
            raise HandOverFailed(f"keyvault:{self._url}: {err.message}") from err


class StoreFolder:
    """An object store: one object for each node below the URL, which only manager and nodes may read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = open_store(url)

    def put(self, node: str, ticket: str) -> None:
        """Write the object."""
        try:
            self._store.put(store_key(node), ticket.encode())
        except StoreError as err:
            raise HandOverFailed(str(err)) from err

    def remove(self, node: str) -> None:
        """Delete the object."""
        try:
            self._store.delete([store_key(node)])
        except StoreError as err:
            raise HandOverFailed(str(err)) from err

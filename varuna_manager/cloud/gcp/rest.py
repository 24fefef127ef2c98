"""Calls of the Compute Engine API, version 1: JSON over HTTPS. Knows no pools."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import httpx

from varuna_manager.cloud.gcp.errors import refusal
from varuna_manager.cloud.provider import ProviderError, Trouble
from varuna_runtime.spec.errors import InvalidInput

PUBLIC_ENDPOINT = "https://compute.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/compute"
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_MOST_PAGES = 1000

Json = dict[str, Any]


class Rest:
    """One client of a pool; paths begin below `projects/`. Every failure is a ProviderError of its kind."""

    def __init__(self, endpoint: str, *, is_anonymous: bool = False) -> None:
        auth = None if is_anonymous else _Bearer()
        self._client = httpx.Client(base_url=f"{endpoint}/compute/v1/projects/", timeout=_TIMEOUT, auth=auth)

    def get(self, path: str, **params: str) -> Json:
        """Return the answer to a GET."""
        return self._call("GET", path, params, None)

    def post(self, path: str, body: Json | None = None, **params: str) -> Json:
        """Return the answer to a POST."""
        return self._call("POST", path, params, body)

    def delete(self, path: str) -> Json:
        """Return the answer to a DELETE; empty if there is nothing of that name any more."""
        return self._call("DELETE", path, {}, None)

    def pages(self, method: str, path: str, **params: str) -> Iterator[Json]:
        """Yield every page."""
        token = ""
        for _ in range(_MOST_PAGES):
            page = self._call(method, path, {**params, **({"pageToken": token} if token else {})}, None)
            yield page
            token = str(page.get("nextPageToken", ""))
            if not token:
                return
        raise ProviderError(f"{path}: more than {_MOST_PAGES} pages", trouble=Trouble.UNKNOWN)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, method: str, path: str, params: Mapping[str, str], body: Json | None) -> Json:
        asked = f"{method} {path}"
        try:
            answer = self._client.request(method, path, params=dict(params), json=body)
        except httpx.HTTPError as err:
            raise ProviderError(f"{asked}: {type(err).__name__}: {err}", trouble=Trouble.RETRY) from err
        found = _document(answer)
        if method == "DELETE" and answer.status_code == 404:
            return {}
        if answer.is_success and found is not None:
            return found
        if answer.is_success:
            raise ProviderError(f"{asked}: seen {answer.text[:80]!r}, wanted JSON", trouble=Trouble.RETRY)
        raise refusal(answer.status_code, found or {}, answer.headers.get("retry-after", ""), asked)


def _document(answer: httpx.Response) -> Json | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class _Bearer(httpx.Auth):
    """The default credentials of this machine or user, found at the first call and renewed as needed."""

    def __init__(self) -> None:
        try:
            import google.auth.exceptions as failures
            from google.auth import default
            from google.auth.transport.requests import Request
        except ImportError as err:
            raise InvalidInput(
                f"a pool of provider gcp needs Google's libraries ({err}): pip install 'varuna[gcp]'"
            ) from err
        self._failures = failures
        self._find = default
        self._request = Request
        self._found: Any = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Put a valid token on the request."""
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request

    def _token(self) -> str:
        try:
            if self._found is None:
                self._found, _ = self._find(scopes=[_SCOPE])
            if not self._found.valid:
                self._found.refresh(self._request())
        except self._failures.TransportError as err:
            raise ProviderError(f"no token of Google: {err}", trouble=Trouble.RETRY) from err
        except self._failures.GoogleAuthError as err:
            raise ProviderError(f"no credentials for Google: {err}", trouble=Trouble.AUTH) from err
        return str(self._found.token)

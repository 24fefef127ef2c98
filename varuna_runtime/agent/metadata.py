"""Asks the metadata service of the cloud this machine runs in: no proxy, bounded in time and size."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from varuna_runtime.agent import clock
from varuna_runtime.agent.notices import times
from varuna_runtime.spec.errors import MetadataUnavailable

WITHIN_S = 1.5
_MOST_BYTES = 1 << 20
_TOKEN_S = 3600
_TOKEN_MARGIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service said; `unix_s` is its own clock, or ours where it tells no time."""

    status: int
    text: str
    headers: Mapping[str, str]  # names in lower case
    unix_s: float


class Metadata:
    """One service. Close it."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=base_url, trust_env=False, follow_redirects=False, timeout=None
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: object = None,
        within_s: float = WITHIN_S,
    ) -> Answer:
        """Return the answer, whatever its status; raises MetadataUnavailable without one."""
        what = f"{method} {path.partition('?')[0]}"
        try:
            async with asyncio.timeout(within_s):
                return await self._answer(method, path, headers, body, what)
        except TimeoutError as err:
            raise MetadataUnavailable(f"no answer to {what} in {within_s:g} s") from err
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as err:
            raise MetadataUnavailable(f"{what} failed: {str(err) or type(err).__name__}") from err

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: object, what: str
    ) -> Answer:
        content = None if body is None else json.dumps(body).encode()
        async with self._client.stream(method, path, headers=dict(headers), content=content) as response:
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > _MOST_BYTES:
                    raise MetadataUnavailable(f"the answer to {what} does not end")
            told_s = times.rfc1123(response.headers.get("date"))
            return Answer(
                status=response.status_code,
                text=received.decode(errors="replace"),
                headers={name.lower(): value for name, value in response.headers.items()},
                unix_s=clock.unix_s() if told_s is None else told_s,
            )


class AwsMetadata:
    """The instance metadata service of EC2, version 2: every question carries a session token."""

    def __init__(self, base_url: str, *, within_s: float = WITHIN_S) -> None:
        self._metadata = Metadata(base_url)
        self._within_s = within_s
        self._token = ""
        self._token_until_s = 0.0
        self._renewing = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections."""
        await self._metadata.close()

    async def get(self, path: str) -> Answer | None:
        """Return the answer below /latest, None if there is none; a refused token is renewed once."""
        token = await self._fresh_token("")
        answer = await self._get(path, token)
        if answer.status == 401:
            answer = await self._get(path, await self._fresh_token(token))
        if answer.status == 404:
            return None
        return expect_ok(answer, f"GET /latest/{path}")

    async def text(self, path: str) -> str:
        """Return the text below /latest/meta-data, empty if there is none."""
        answer = await self.get(f"meta-data/{path}")
        return "" if answer is None else answer.text.strip()

    async def _get(self, path: str, token: str) -> Answer:
        headers = {"X-aws-ec2-metadata-token": token}
        return await self._metadata.ask(f"/latest/{path}", headers, within_s=self._within_s)

    async def _fresh_token(self, refused: str) -> str:
        """Return a token other than `refused`; one renewal at a time, the others wait for it."""
        async with self._renewing:
            if self._token in ("", refused) or clock.now_s() > self._token_until_s:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        lifetime = "X-aws-ec2-metadata-token-ttl-seconds"
        self._token = ""
        asked_at_s = clock.now_s()
        what = "PUT /latest/api/token"
        try:
            answer = await self._metadata.ask(
                "/latest/api/token", {lifetime: str(_TOKEN_S)}, method="PUT", within_s=self._within_s
            )
        except MetadataUnavailable as err:
            if not isinstance(err.__cause__, TimeoutError):
                raise
            raise MetadataUnavailable(f"{err}; in a container the hop limit has to be 2") from err
        expect_ok(answer, what)
        token = answer.text.strip()
        if not (token.isascii() and token.isprintable() and token):
            raise MetadataUnavailable(f"{what} gave no token but {in_brief(answer.text)}")
        told = answer.headers.get(lifetime.lower(), "")
        ttl_s = min(_TOKEN_S, int(told)) if told.isascii() and told.isdigit() and len(told) < 10 else _TOKEN_S
        self._token = token
        self._token_until_s = asked_at_s + ttl_s - min(_TOKEN_MARGIN_S, ttl_s / 4)


def expect_ok(answer: Answer, what: str) -> Answer:
    """Return the answer if its status is 200; raises MetadataUnavailable."""
    if answer.status != 200:
        raise MetadataUnavailable(f"{what} gave status {answer.status}, wanted 200")
    return answer


def json_of(text: str, what: str) -> Any:
    """Return the JSON value of an answer; raises MetadataUnavailable."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as err:
        raise MetadataUnavailable(f"{what} gave no JSON but {in_brief(text)}") from err


def in_brief(text: str) -> str:
    """Return the beginning of an answer that made no sense, fit for a line of a log."""
    return ascii(text[:60]) + ("..." if len(text) > 60 else "")

"""From a setting to a source of notices; the sources of clouds are imported only when one is wanted."""

import asyncio
from collections.abc import AsyncGenerator
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from varuna_runtime.agent.notices.changes import Change, HealthChanged, Notice, NoticeSource
from varuna_runtime.agent.notices.file import FileNotices


class Notices(StrEnum):
    """Where an agent may learn of its node's end."""

    FILE = "file"
    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"
    NONE = "none"


class NoNotices:
    """A machine that nobody takes away."""

    name = "none"
    ends_node = False

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield nothing but the state."""
        yield HealthChanged(state=self.name)
        await asyncio.Event().wait()

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing."""


def open_source(kind: Notices, *, endpoint: str, file: Path) -> NoticeSource:
    """Return a source; `endpoint` is of the cloud's metadata service."""
    match kind:
        case Notices.FILE:
            return FileNotices(file)
        case Notices.NONE:
            return NoNotices()
        case Notices.AWS:
            from varuna_runtime.agent.notices.aws import AwsNotices

            return AwsNotices(endpoint)
        case Notices.AZURE:
            from varuna_runtime.agent.notices.azure import AzureNotices

            return AzureNotices(endpoint)
        case Notices.GCP:
            from varuna_runtime.agent.notices.gcp import GcpNotices

            return GcpNotices(endpoint)
        case _:
            assert_never(kind)

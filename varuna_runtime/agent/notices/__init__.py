"""Where an agent learns that its node will vanish: one source per kind of machine."""

from varuna_runtime.agent.notices.changes import (
    Cancelled,
    Change,
    HealthChanged,
    Hint,
    Notice,
    NoticeSource,
)
from varuna_runtime.agent.notices.file import FileNotices

__all__ = ["Cancelled", "Change", "FileNotices", "HealthChanged", "Hint", "Notice", "NoticeSource"]

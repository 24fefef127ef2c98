"""Agents on other machines through the system's `ssh`: start, look, end. Knows nothing of pools."""

import shlex
import subprocess
from dataclasses import dataclass
from enum import StrEnum

from varuna_manager.cloud.provider import ProviderError, Trouble
from varuna_manager.pool_settings import SshHost

CONNECT_S = 10
CALL_S = 30.0
_UNREACHABLE = 255  # ssh's own failure; see ssh(1), EXIT STATUS
_AUTH_WORDS = ("Permission denied", "Host key verification failed", "Too many authentication failures")

# The process is known by its pid, its start time and the boot: a pid alone may be another's by now.
_IDENTITY = r"""
set -u
node=$1
folder=${VARUNA_HOME:-$HOME/.varuna}/nodes/$node
boot=$(cat /proc/sys/kernel/random/boot_id)
start_of() {
    { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    set -- ${stat##*) }
    [ "$1" != Z ] && [ "$1" != X ] && echo "${20}"
}
is_alive() {
    [ -r "$folder/agent.pid" ] || return 1
    read -r pid start its_boot <"$folder/agent.pid" || return 1
    [ "$its_boot" = "$boot" ] && [ "$(start_of "$pid")" = "$start" ]
}
"""
_START = (
    _IDENTITY
    + r"""
manager=$2 slots=$3 address=$4
shift 4
IFS= read -r ticket || ticket=
is_alive && exit 0
command -v "$1" >/dev/null || { echo "there is no program $1" >&2; exit 4; }
mkdir -p "$folder" || exit 5
set -- "$@" agent --manager "$manager" --node "$node" --home "$folder" --slots "$slots" --host "$address"
if [ -n "$ticket" ]; then
    printf '%s\n' "$ticket" | setsid nohup "$@" --join - >>"$folder/agent.log" 2>&1 &
else
    setsid nohup "$@" --insecure-plaintext </dev/null >>"$folder/agent.log" 2>&1 &
fi
start=$(start_of $!) || { tail -n 1 "$folder/agent.log" >&2; exit 6; }
echo "$! $start $boot" >"$folder/agent.pid"
"""
)
_LOOK = (
    _IDENTITY
    + r"""
if is_alive; then echo alive
elif [ -e "$folder/agent.pid" ]; then echo ended; tail -n 1 "$folder/agent.log"
else echo none
fi
"""
)
_END = (
    _IDENTITY
    + r"""
if is_alive; then
    kill -KILL "$pid"
    while is_alive; do sleep 0.05; done
fi
rm -f "$folder/agent.pid"
"""
)


class Life(StrEnum):
    """What a host says of its agent."""

    ALIVE = "alive"
    ENDED = "ended"  # by itself
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An agent as its host sees it; `last_words` are the end of the log of one that has ended."""

    life: Life
    last_words: str = ""


class Ssh:
    """Calls block for at most `CALL_S` and raise ProviderError: RETRY where the host cannot be reached."""

    def __init__(self, program: str = "ssh") -> None:
        self._program = program

    def start(self, host: SshHost, *, manager: str, command: str, ticket: str) -> None:
        """Start the agent, detached, unless it lives. The ticket goes through stdin: no list shows it."""
        address = host.address or host.host.rpartition("@")[2]
        words = [host.node, manager, str(host.slots), address, *shlex.split(command)]
        self._call(host, _START, words, f"{ticket}\n")

    def look(self, host: SshHost) -> Found:
        """Return whether the agent lives."""
        life, _, words = self._call(host, _LOOK, [host.node]).partition("\n")
        try:
            return Found(life=Life(life.strip()), last_words=words.strip())
        except ValueError as err:
            raise ProviderError(
                f"{host.host}: seen {life!r}, wanted the state of an agent; does its shell print a greeting?",
                trouble=Trouble.CONFIG,
            ) from err

    def end(self, host: SshHost) -> None:
        """Kill the agent, if it lives; its guard ends what it started."""
        self._call(host, _END, [host.node])

    def _call(self, host: SshHost, script: str, words: list[str], told: str = "") -> str:
        """Run a constant script there with these words as its arguments and return what it printed."""
        remote = shlex.join(["sh", "-c", script, "varuna", *words])
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
        try:
            done = subprocess.run(
                [self._program, *options, "--", host.host, remote],
                input=told.encode(),
                capture_output=True,
                timeout=CALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            raise ProviderError(f"{host.host}: no answer within {CALL_S:g} s", trouble=Trouble.RETRY) from err
        except OSError as err:
            raise ProviderError(f"cannot run {self._program}: {err}", trouble=Trouble.CONFIG) from err
        if done.returncode:
            raise _failure(host, done.returncode, done.stderr.decode(errors="replace").strip())
        return done.stdout.decode(errors="replace")


def _failure(host: SshHost, code: int, said: str) -> ProviderError:
    why = f"{host.host}: {said or f'exit status {code}'}"
    if any(words in said for words in _AUTH_WORDS):
        return ProviderError(why, trouble=Trouble.AUTH)
    return ProviderError(why, trouble=Trouble.RETRY if code == _UNREACHABLE else Trouble.CONFIG)

"""The command table and the one place that turns errors into messages and exit codes.

Nothing heavy is imported here: a subcommand's module is loaded when that subcommand runs.
"""

import difflib
import importlib
import os
import signal
import sys
from dataclasses import dataclass

import click

from varuna_manager.cli.plain import plain
from varuna_runtime.spec.errors import NoManager, VarunaError

OK, REFUSED, USAGE, NO_MANAGER, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True, slots=True)
class Entry:
    """A subcommand: `name` of module `varuna_manager.cli.<module>`, and its line in `--help`."""

    module: str
    help: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "This machine's pool": {
        "up": Entry("pool", "Start a manager and local nodes, or what is missing of them."),
        "down": Entry("pool", "End exactly what `varuna up` started."),
        "notice": Entry("pool", "Announce that a local node will vanish, as a cloud does."),
    },
    "Jobs": {
        "submit": Entry("submit", "Submit a job file."),
        "status": Entry("status", "Show the jobs, or one job."),
        "logs": Entry("streams", "Print what the ranks of a job printed."),
        "events": Entry("streams", "Print what happened, by whom and why."),
        "steps": Entry("steps", "Print the committed steps of a job with their loss."),
        "metrics": Entry("metrics", "Print the figures of steps and evaluations, or write them as files."),
        "profile": Entry("profile", "Measure the model of a job file on this machine."),
        "plan": Entry("plan", "Show the plan of a job and why it was chosen."),
        "simulate": Entry("simulate", "Replay a recorded pool on a job, without a manager."),
        "cancel": Entry("status", "End a job."),
    },
    "Checkpoints": {
        "checkpoint": Entry("checkpoint", "Show, verify, prune, export and import checkpoints."),
    },
    "Nodes": {
        "nodes": Entry("nodes", "Show the nodes the manager knows."),
        "drain": Entry("nodes", "Move the work off a node and let it leave."),
        "pools": Entry("pools", "Show the pools that lend nodes, and why one does not."),
    },
    "Access": {
        "token": Entry("tokens", "Make, show and revoke join tickets and user tokens."),
        "login": Entry("tokens", "Store a user token of a manager elsewhere."),
    },
    "Daemons": {
        "manager": Entry("manager", "Run the manager in the foreground."),
        "agent": Entry("agent", "Run the agent of this node in the foreground."),
    },
}
ENTRIES = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

_EPILOG = """\b
To begin:
  varuna up -n 4
  varuna submit examples/gpt/job.yaml --follow
  varuna down

Exit codes: 0 done, 1 refused or the job failed, 2 wrong usage, 3 no manager answers.
"""


class _LazyGroup(click.Group):
    """Lists its commands from the table and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"varuna_manager.cli.{entry.module}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in ENTRIES or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(args[0], ENTRIES, n=1)
        hint = f"; did you mean `varuna {close[0]}`?" if close else "; `varuna --help` lists them"
        raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])


@click.command(cls=_LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="varuna", message="varuna %(version)s")
def cli() -> None:
    """Elastic PyTorch training on preemptible VMs, bit-identical whatever happens to them."""


def main() -> None:
    """Run the command line and exit with its code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not if it is ignored, as under nohup
            signal.signal(number, _end)
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command and return its exit code; every error becomes one clear message on stderr."""
    try:
        result = cli.main(args, prog_name="varuna", standalone_mode=False)
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except NoManager as err:
        return _refused(err, NO_MANAGER)
    except VarunaError as err:
        return _refused(err, REFUSED)
    except BrokenPipeError:
        # The reader of a pipe has gone, as `head` does; a flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    return result if isinstance(result, int) else OK


def _end(number: int, _: object) -> None:
    """End like after ctrl-C: child processes and temporary folders go first."""
    raise SystemExit(128 + number)


def _refused(err: VarunaError, code: int) -> int:
    click.echo("\n".join(map(plain, f"varuna: {err}".split("\n"))), err=True)
    return code

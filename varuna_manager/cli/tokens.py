"""`varuna token ...` and `varuna login`."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime

import click

from varuna_manager import files
from varuna_manager.cli.connect import connect
from varuna_manager.cli.options import as_seconds, examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json
from varuna_manager.cli.tables import table
from varuna_manager.client import Client, TokenStatus, access_of
from varuna_manager.config import default_home
from varuna_runtime.spec.tickets import user_token


@click.group(epilog=examples("varuna token create --user alice", "varuna token ls"))
def token() -> None:
    """Make, show and revoke join tickets and user tokens."""


@token.command(
    epilog=examples("varuna token create --user alice --ttl 720h", "varuna token create --node vm-3")
)
@click.option("--user", metavar="NAME", help="A token for a person or program; events name it.")
@click.option("--node", metavar="NAME", help="A ticket with which one machine joins as this node, once.")
@click.option(
    "--ttl", callback=as_seconds, metavar="DURATION", help="Default: 90 days; for a ticket 15 minutes."
)
@manager_option
def create(*, user: str | None, node: str | None, ttl: float | None, manager: str | None) -> None:
    """Print a new token or ticket; it is shown this once and kept nowhere."""
    if (user is None) == (node is None):
        raise click.UsageError("give one of --user NAME and --node NAME")
    with connect(manager) as client:
        if user is not None:
            click.echo(client.create_user_token(user, ttl_s=ttl or 0.0))
        else:
            click.echo(client.create_ticket(node or "", ttl_s=ttl or 0.0))


@token.command(epilog=examples("varuna token ls"))
@json_option
@manager_option
def ls(*, as_json: bool, manager: str | None) -> None:
    """Show tickets and tokens with their state, never their secrets."""
    with connect(manager) as client:
        found = client.tokens()
    if as_json:
        print_json([asdict(each) for each in found])
    elif not found:
        click.echo("no tickets or tokens; `varuna token create` makes one")
    else:
        console().print(
            table(("ID", "KIND", "NAME", "STATE", "EXPIRES", "MADE BY"), [_row(t) for t in found])
        )


@token.command(epilog=examples("varuna token revoke 3f6c01aa", "varuna token revoke --node vm-3"))
@click.argument("id", required=False)
@click.option("--node", metavar="NAME", help="Every ticket and certificate that this node has.")
@manager_option
def revoke(id: str | None, *, node: str | None, manager: str | None) -> None:
    """Make a ticket or token useless at once, also for what uses it just now."""
    if (id is None) == (node is None):
        raise click.UsageError("give one of ID and --node NAME")
    with connect(manager) as client:
        if node is None:
            client.revoke_token(id or "")
        else:
            client.revoke_node(node)
    click.echo(f"{id} is revoked" if node is None else f"{node} needs a new ticket to come back")


@click.command(epilog=examples("varuna login < token.txt"))
@click.option("--check/--no-check", default=True, help="Ask the manager before the token is stored.")
def login(*, check: bool) -> None:
    """Store a user token of a manager elsewhere.

    It is read from standard input; `--manager` is then not needed any more.
    """
    is_typed = sys.stdin.isatty()
    found = user_token(click.prompt("token", hide_input=True) if is_typed else sys.stdin.readline())
    if check:
        with Client(found.manager, access=access_of(found)) as client:
            client.nodes()
    files.replace(default_home().login, found.text() + "\n")
    click.echo(f"stored in {default_home().login}; `varuna ...` now means the manager at {found.manager}")


def _row(each: TokenStatus) -> tuple[object, ...]:
    expires = datetime.fromtimestamp(each.expires_at, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
    return each.id, each.kind.lower(), each.name, each.state, f"{expires} UTC", each.created_by

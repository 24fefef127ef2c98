"""`varuna up`, `varuna down` and `varuna notice`: the pool of this machine."""

from pathlib import Path

import click

from varuna_manager.cli.bring_up import NodeShape, await_nodes, ensure_manager, ensure_nodes
from varuna_manager.cli.nodes import node_table
from varuna_manager.cli.options import as_bytes, as_seconds, examples
from varuna_manager.cli.output import console
from varuna_manager.cli.take_down import end_all
from varuna_manager.cloud.local_machines import LocalMachines
from varuna_manager.cloud.pool_file import exclusively
from varuna_manager.config import default_home
from varuna_manager.core.words import counted


@click.command(epilog=examples("varuna up -n 4", "varuna up -n 2 --memory 512M --config manager.yaml"))
@click.option("-n", "--nodes", type=click.IntRange(min=0), default=4, show_default=True, help="Living nodes.")
@click.option(
    "--slots", type=click.IntRange(min=1), default=1, show_default=True, help="Slots of a new node."
)
@click.option(
    "--memory",
    callback=as_bytes,
    metavar="SIZE",
    help="Memory of a new slot, such as 512M; default: a share of the machine's.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of a new manager; default: the last one.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="manager.yaml of a new manager; default: all defaults.",
)
def up(*, nodes: int, slots: int, memory: int | None, port: int | None, config: Path | None) -> None:
    """Start a manager and local nodes, or what is missing of them.

    Repeat it after anything was killed. It never removes a node; `varuna drain NODE` does.
    """
    home = default_home()
    with exclusively(home.pool_change):
        address = ensure_manager(home, port, config)
        added = ensure_nodes(home, address, nodes, NodeShape(slots=slots, memory_bytes=memory))
    seen = await_nodes(home, address)
    click.echo(f"manager {address}, state in {home.root}; {counted(len(added), 'new node')}")
    console().print(node_table(seen))


@click.command(epilog=examples("varuna down"))
def down() -> None:
    """End exactly what `varuna up` started.

    Jobs that are not over stay in the manager's state and go on after the next `varuna up`.
    """
    home = default_home()
    with exclusively(home.pool_change):
        told = end_all(home)
        home.pool_change.unlink(missing_ok=True)
    click.echo(f"ended {', '.join(s.name for s in told)}" if told else "nothing was running")


@click.command(epilog=examples("varuna notice local-1 --in 30s", "varuna notice local-1 --cancel"))
@click.argument("node")
@click.option("--in", "in_s", callback=as_seconds, metavar="DURATION", help="How long until it vanishes.")
@click.option("--cancel", is_flag=True, help="Take the notice back.")
def notice(node: str, *, in_s: float | None, cancel: bool) -> None:
    """Announce that a local node will vanish, as a cloud does.

    At the end of the DURATION its processes are killed; until then the job moves its work away.
    """
    machines = LocalMachines(default_home())
    if cancel == (in_s is not None):
        raise click.UsageError("give either --in DURATION or --cancel")
    if in_s is None:
        machines.withdraw_notice(node)
        click.echo(f"{node} stays")
    else:
        machines.notice(node, in_s)
        click.echo(f"{node} will vanish in {in_s:g} s")

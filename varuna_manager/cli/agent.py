"""`varuna agent`."""

import socket
from pathlib import Path

import click

from varuna_manager.cli.connect import address_of
from varuna_manager.cli.options import as_bytes, examples, manager_option
from varuna_manager.config import default_home
from varuna_runtime.agent.config import AgentConfig
from varuna_runtime.agent.main import run


@click.command(epilog=examples("varuna agent --manager 10.0.0.5:7800 --node vm-3 --host 10.0.0.9"))
@manager_option
@click.option("--node", default=socket.gethostname, show_default="the host name", help="Name of this node.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of this node's files.")
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="Devices to lend.")
@click.option("--memory", callback=as_bytes, metavar="SIZE", help="Memory of a slot, such as 2G.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that other nodes reach.")
def agent(
    *, manager: str | None, node: str, home: Path | None, slots: int, memory: int | None, host: str
) -> int:
    """Run the agent of this node in the foreground."""
    config = AgentConfig(
        node=node,
        manager=address_of(manager),
        home=home or default_home().node(node),
        slots=slots,
        host=host,
        memory_bytes=memory or 0,
    )
    return run(config)

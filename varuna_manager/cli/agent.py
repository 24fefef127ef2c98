"""`varuna agent`."""

import socket
from pathlib import Path

import click

from varuna_manager.cli.connect import address_of
from varuna_manager.cli.options import as_bytes, as_seconds, examples, manager_option
from varuna_manager.config import default_home
from varuna_runtime.agent.clouds import Cloud
from varuna_runtime.agent.config import AgentConfig, metadata_endpoint
from varuna_runtime.agent.main import log_as_json, run
from varuna_runtime.agent.notices.opening import Notices


@click.command(
    epilog=examples(
        "varuna agent --manager 10.0.0.5:7800 --node vm-3 --host 10.0.0.9",
        "varuna agent --manager 10.0.0.5:7800 --cloud aws --drain-on-term 90s",
    )
)
@manager_option
@click.option(
    "--cloud",
    type=click.Choice([cloud.value for cloud in Cloud]),
    help="Ask this cloud's metadata service for the node's name, its address and notices.",
)
@click.option("--node", default="", help="Name of this node; default: the cloud's, else the host name.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of this node's files.")
@click.option("--slots", type=click.IntRange(min=1), help="Devices to lend; default: every GPU, else 1.")
@click.option("--memory", callback=as_bytes, metavar="SIZE", help="Memory of a slot, such as 2G.")
@click.option(
    "--host", default="", help="Address that other nodes reach; default: the cloud's, else 127.0.0.1."
)
@click.option(
    "--notices",
    type=click.Choice([kind.value for kind in Notices]),
    help="Where to learn that the node will vanish; default: the cloud, else the file notice.json.",
)
@click.option(
    "--drain-on-term",
    "drain_on_term_s",
    callback=as_seconds,
    metavar="DURATION",
    help="On SIGTERM hand the work over for at most so long, such as 60s, before leaving.",
)
def agent(
    *,
    manager: str | None,
    cloud: str | None,
    node: str,
    home: Path | None,
    slots: int | None,
    memory: int | None,
    host: str,
    notices: str | None,
    drain_on_term_s: float | None,
) -> int:
    """Run the agent of this node in the foreground."""
    log_as_json()
    if cloud is not None:
        from varuna_runtime.agent.identity import node_and_host  # HTTP, which no other command needs

        node, host = node_and_host(Cloud(cloud), metadata_endpoint(cloud), node, host)
    node = node or socket.gethostname()
    kind = Notices(notices or cloud or Notices.FILE)
    config = AgentConfig(
        node=node,
        manager=address_of(manager),
        home=home or default_home().node(node),
        slots=slots or 0,
        host=host or "127.0.0.1",
        memory_bytes=memory or 0,
        notices=kind,
        metadata_endpoint=metadata_endpoint(kind),
        drain_on_term_s=drain_on_term_s or 0.0,
    )
    return run(config)

"""`varuna agent`."""

import socket
from pathlib import Path

import click

from varuna_manager.cli.connect import address_of
from varuna_manager.cli.options import as_bytes, as_bytes_or_zero, as_seconds, examples, manager_option
from varuna_manager.config import default_home
from varuna_runtime.agent.clouds import Cloud
from varuna_runtime.agent.config import AgentConfig, metadata_endpoint
from varuna_runtime.agent.credentials import Wallet
from varuna_runtime.agent.logbook import log_as_json
from varuna_runtime.agent.main import run
from varuna_runtime.agent.notices.opening import Notices


@click.command(
    epilog=examples(
        "varuna agent --manager 10.0.0.5:7800 --node vm-3 --host 10.0.0.9",
        "varuna agent --cloud aws --join ssm:/varuna/join --drain-on-term 90s",
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
    "--copies",
    callback=as_bytes_or_zero,
    metavar="SIZE",
    help="Memory for copies of ranks' state, such as 8G, or 0 for none; default: a quarter of the machine's.",
)
@click.option(
    "--join",
    envvar="VARUNA_JOIN",
    default="",
    metavar="SOURCE",
    help="Join ticket for the first start: a file, - for standard input, or where it is handed over: "
    "ssm:/PATH, keyvault:https://VAULT, or a store's URL.",
)
@click.option(
    "--insecure-plaintext",
    is_flag=True,
    envvar="VARUNA_INSECURE_PLAINTEXT",
    help="Without a ticket, speak plain text to a manager on another machine too.",
)
@click.option(
    "--host",
    default="",
    help="Address that other nodes reach; default: the cloud's, else on the way to the manager.",
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
    copies: int | None,
    join: str,
    insecure_plaintext: bool,
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
    folder = home or default_home().node(node)
    kind = Notices(notices or cloud or Notices.FILE)
    config = AgentConfig(
        node=node,
        manager=_manager(manager, join, folder),
        join=join,
        home=folder,
        slots=slots or 0,
        insecure_plaintext=insecure_plaintext,
        host=host,
        memory_bytes=memory or 0,
        copies_bytes=copies,
        notices=kind,
        metadata_endpoint=metadata_endpoint(kind),
        drain_on_term_s=drain_on_term_s or 0.0,
    )
    return run(config)


def _manager(given: str | None, join: str, folder: Path) -> str:
    """Return the manager's address; empty when the ticket, or what the node kept of one, tells it."""
    if given is None and (join or Wallet(folder / "identity").path.exists()):
        return ""
    return address_of(given)

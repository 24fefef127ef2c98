"""`varuna manager`."""

from pathlib import Path

import click

from varuna_manager.cli.options import examples
from varuna_manager.config import ManagerConfig, checked, load
from varuna_manager.daemon import run


@click.command(epilog=examples("varuna manager --config /etc/varuna/manager.yaml"))
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="manager.yaml; default: all defaults."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen here; wins over the file. 0: any free port."
)
def manager(*, config: Path | None, port: int | None) -> None:
    """Run the manager in the foreground."""
    settings = ManagerConfig() if config is None else load(config)
    if port is not None:
        settings = checked(settings.model_copy(update={"port": port}))
    run(settings)

"""`varuna checkpoint ...`: what is durable, whether it is sound, and its way in and out.

Commands are declared here, so that help is quick; what they do is imported when they run.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from varuna_manager.cli.options import examples, json_option, manager_option

Command = Callable[..., Any]
_LS = ("varuna checkpoint ls gpt", "varuna checkpoint ls gpt-3f6c01 --store s3://bucket/varuna")


def store_option(command: Command) -> Command:
    """Add `--store`."""
    return click.option(
        "--store", metavar="URL", help="The store itself; JOB is then an id, and no manager is needed."
    )(command)


@click.group(epilog=examples("varuna checkpoint ls gpt", "varuna checkpoint export gpt --to gpt2-trained"))
def checkpoint() -> None:
    """Show, verify, prune, export and import checkpoints."""


@checkpoint.command(epilog=examples(*_LS))
@click.argument("job", required=False)
@store_option
@json_option
@manager_option
def ls(**given: Any) -> Any:
    """Show the steps that are in the store, newest first.

    JOB is an id, or a name, which means the newest job of that name. A step is complete if a job could go on
    from it as far as its manifest and the sizes tell; `verify` reads every byte.
    """
    return _body("looking").ls(**given)


@checkpoint.command(
    epilog=examples("varuna checkpoint verify gpt", "varuna checkpoint verify gpt --step 1200")
)
@click.argument("job")
@click.option("--step", type=click.IntRange(min=0), help="Default: the newest that has a manifest.")
@store_option
@manager_option
def verify(**given: Any) -> Any:
    """Read every byte of a step and compare checksums.

    Exit code 1 if it is damaged; the first bad object is named, and the newest step that is sound.
    """
    return _body("looking").verify(**given)


@checkpoint.command("prune", epilog=examples("varuna checkpoint prune gpt --keep 2 --dry-run"))
@click.argument("job")
@click.option(
    "--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many steps to keep."
)
@click.option("--dry-run", is_flag=True, help="Show what would go; delete nothing.")
@store_option
@json_option
@manager_option
def prune_(**given: Any) -> Any:
    """Delete the steps that the newest N complete ones do not need.

    What is newer than the newest complete step stays: a save may be under way. The bytes of that step are
    read first; if it is damaged, nothing is deleted.
    """
    return _body("looking").prune_(**given)


@checkpoint.command(
    epilog=examples(
        "varuna checkpoint export gpt --to gpt2-trained",
        "varuna checkpoint export gpt --to gpt.pt --format torch --with-optimizer",
    )
)
@click.argument("job")
@click.option("--step", type=click.IntRange(min=0), help="Default: the newest that is complete.")
@click.option(
    "--to", "path", type=click.Path(path_type=Path), required=True, help="A folder; a file for torch."
)
@click.option(
    "--format", "kind", type=click.Choice(["safetensors", "torch"]), default="safetensors", show_default=True
)
@click.option("--weights-only/--with-optimizer", default=True, help="Default: weights only.")
@store_option
@manager_option
def export(**given: Any) -> Any:
    """Write a step as files that other tools read.

    `safetensors`: a folder as Hugging Face's `from_pretrained` takes it. `torch`: one file for `torch.load`,
    with `model`, `optimizer` and `step`. Every byte is compared with its checksum on the way.
    """
    return _body("moving").export(**given)


@checkpoint.command(
    "import", epilog=examples("varuna checkpoint import gpt2.safetensors --job-file job.yaml")
)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--job-file", type=click.Path(path_type=Path), required=True, help="Of the job to be.")
@click.option("--store", metavar="URL", help="Default: the store of the job file, else the manager's.")
@json_option
@manager_option
def import_(**given: Any) -> Any:
    """Make the checkpoint that a new job starts from.

    PATH is safetensors (a file, a folder or an index) or a file of `torch.save` with a state dict. Prints the
    id to submit the job with; `varuna submit --from PATH` does both.
    """
    return _body("moving").import_(**given)


def _body(part: str) -> Any:
    return importlib.import_module(f"varuna_manager.cli.checkpoint_{part}")

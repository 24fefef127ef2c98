"""Profiles as files: plain JSON with a model and what it costs."""

import json
from pathlib import Path

import click

from varuna_manager.cli.options import F
from varuna_manager.cli.text_files import text_of, write_text
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile, ProfiledModel
from varuna_runtime.spec.profile_checks import difference, flaw


def profile_option(command: F) -> F:
    """Add `--profile FILE`."""
    return click.option(
        "--profile",
        "profile_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="What the segments cost, from `varuna profile --output FILE`.",
    )(command)


def read_profile(path: Path) -> ProfiledModel:
    """Return the profile in a file; InvalidInput if it is none, or one that no planner can use."""
    text = text_of(path, "profile")
    try:
        found = canonical.loads(ProfiledModel, text)
    except InvalidInput as err:
        raise InvalidInput(f"{path}: wanted JSON as `varuna profile --output` writes it: {err}") from err
    if why := flaw(found):
        raise InvalidInput(f"{path}: {why}")
    return found


def profile_for(path: Path, model: ModelRecord) -> Profile:
    """Return the profile in a file; InvalidInput if it is of another model."""
    found = read_profile(path)
    if how := difference(found.model, model):
        raise InvalidInput(f"{path}: the profile is of another model: {how}; make one with `varuna profile`")
    return found.profile


def write_profile(path: Path, profiled: ProfiledModel) -> None:
    """Write a profile so that people can read it too."""
    text = json.dumps(json.loads(canonical.dumps(profiled)), indent=1, sort_keys=True)
    write_text(path, "profile", text + "\n")

"""Profiles as files: plain JSON with a model and what it costs."""

import json
from pathlib import Path

import click

from varuna_manager.cli.options import F
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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = "not UTF-8" if isinstance(err, UnicodeDecodeError) else (err.strerror or str(err)).lower()
        raise InvalidInput(f"{path}: the profile cannot be read: {reason}") from err
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
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as err:
        raise InvalidInput(f"{path}: the profile cannot be written: {err.strerror}") from err

"""What the tests of deploy/ share: where it is, its tools, and how its templates are read."""

import importlib.util
import os
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def tool(name: str) -> str:
    """Return the path of a program; skip the test where it is not installed, except in CI."""
    found = shutil.which(name)
    if found is None and not os.environ.get("CI"):
        pytest.skip(f"{name} is not installed")
    assert found is not None, f"CI has to have {name}"
    return found


def embed() -> ModuleType:
    """Return deploy/embed.py as a module."""
    spec = importlib.util.spec_from_file_location("deploy_embed", DEPLOY / "embed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled_in(path: Path, **values: str) -> str:
    """Return a file with its `${WORDS}` filled in; KeyError where one has no value."""
    return re.sub(r"\$\{(\w+)\}", lambda word: values[word[1]], path.read_text())


def cloudformation(path: Path) -> dict[str, Any]:
    """Return a CloudFormation template with every tag as its long form."""
    found: dict[str, Any] = yaml.load(path.read_text(), Loader=_Tagged)
    return found


class _Tagged(yaml.SafeLoader):
    pass


def _long_form(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, object]:
    if isinstance(node, yaml.ScalarNode):
        value: object = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": value}


_Tagged.add_multi_constructor("!", _long_form)

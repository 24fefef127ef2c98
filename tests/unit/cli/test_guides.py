"""What the guides tell people to type, open and look for is there."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from varuna_manager.cli import root

ROOT = Path(__file__).parents[3]
GUIDES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
OPERATOR = sorted((ROOT / "docs" / "operator-guide").glob("*.md"))
COMMAND = re.compile(r"(?:^|[\s(\"'])(?:/opt/varuna/bin/)?varuna ([a-z]+\b[^`\n|]*)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(path: Path) -> list[str]:
    """Return every `varuna ...` of a guide's code, one a line, without comments and what surrounds it."""
    text = path.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = "\n".join(
        [*blocks, *re.findall(r"`(varuna [^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))]
    )
    found = []
    for line in code.splitlines():
        for each in COMMAND.findall(re.split(r"\s+#\s", line)[0]):
            found.append(re.split(r"['\")>;|]|&&| < ", each)[0].strip())
    return found


ALL = [
    pytest.param(each, id=f"{name(path)}: {each}")
    for path in GUIDES
    for each in dict.fromkeys(commands(path))
]


@pytest.mark.parametrize("line", ALL)
def test_a_command_of_the_guides_exists_with_its_options(line: str) -> None:
    words = shlex.split(line)
    command = root.cli.get_command(click.Context(root.cli), words[0])
    assert command is not None, f"no command {words[0]}"
    if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
        words = words[1:]
        command = command.get_command(click.Context(command), words[0])
        assert command is not None, f"no command {words[0]}"
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    used = {re.split("[= ]", word.strip("[]"))[0] for word in words[1:] if word.strip("[").startswith("-")}
    assert used - known - {"--help", "-"} == set()


def test_the_guides_were_read() -> None:
    assert len(ALL) > 40
    assert any("token create --user alice" in str(each.values[0]) for each in ALL)


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_what_a_guide_links_to_is_there(path: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()) if "://" not in link]
    for link in links:
        file, _, heading = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, (
                link
            )


@pytest.mark.parametrize("path", [*OPERATOR, ROOT / "README.md"], ids=name)
def test_the_files_of_this_project_that_a_guide_names_are_there(path: Path) -> None:
    text = path.read_text()
    for file in re.findall(r"(?<![\w/.-])((?:deploy|examples|docs)/[\w./-]*\w)", text):
        assert (ROOT / file).exists(), file


@cache
def said() -> str:
    """Return every text that the code may say, one a line; what is filled in is a NUL."""
    found = []
    for package in ("varuna_manager", "varuna_runtime"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "wire/v1" in str(path):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("path", OPERATOR, ids=name)
def test_the_messages_that_a_guide_explains_are_said_somewhere(path: Path) -> None:
    rows = re.findall(
        r"^\| (.+?) \|", path.read_text().partition("## When something is wrong")[2], re.MULTILINE
    )
    clouds_own = {
        "InsufficientInstanceCapacity",
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "STOCKOUT",
        "QUOTA_EXCEEDED",
    }
    for row in rows:
        for message in re.findall(r"`([^`]+)`", row):
            if message.startswith("varuna ") or message in clouds_own:
                continue
            for part in message.split(" ... "):
                assert part in said(), part

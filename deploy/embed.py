"""Writes the files of this folder that others carry inside into those, so that each text has one source.

In YAML a block scalar `|  # PATH` holds the text of PATH (below this folder), and a key `KEY:  # PATH` the
value of that JSON file, with `!Sub` before what CloudFormation has to fill in. In the ARM template the
variables of `VARIABLES` hold a text each. `python deploy/embed.py` rewrites all; a test compares.
"""

import json
import re
from pathlib import Path

DEPLOY = Path(__file__).parent
CARRIERS = (  # in this order: the later ones carry the earlier ones
    "cloud-init/node.yaml",
    "cloud-init/manager.yaml",
    "aws/varuna.yaml",
    "azure/template.json",
)
VARIABLES = {"managerCloudInit": "cloud-init/manager.yaml", "nodeCloudInit": "cloud-init/node.yaml"}
_BLOCK = re.compile(r"^( *)(?:- (?:[\w-]+: )?|[\w-]+: )\|  # (\S+)$")
_DOCUMENT = re.compile(r"^( *)\w+:  # (\S+\.json)$")
_PLACEHOLDER = re.compile(r'("[^"]*\$\{[^"]*")')
_VARIABLE = re.compile(rf'^( *)"({"|".join(VARIABLES)})": ".*"(,?)$')


def embedded(text: str) -> str:
    """Return the text of a carrier with everything it carries brought up to date."""
    lines = text.splitlines()
    result: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if variable := _VARIABLE.match(line):
            indent, name, comma = variable.groups()
            result.append(f'{indent}"{name}": {json.dumps(_source(VARIABLES[name]))}{comma}')
            continue
        result.append(line)
        if block := _BLOCK.match(line) or _DOCUMENT.match(line):
            depth = len(block[1])
            while at < len(lines) and _is_deeper(lines[at], depth):
                at += 1
            body = _body(block[2])
            result += [" " * (depth + 4) + each if each else "" for each in body]
    return "\n".join(result) + "\n"


def _is_deeper(line: str, depth: int) -> bool:
    return not line.strip() or len(line) - len(line.lstrip()) > depth


def _body(path: str) -> list[str]:
    text = _source(path).rstrip("\n")
    return (_PLACEHOLDER.sub(r"!Sub \1", text) if path.endswith(".json") else text).splitlines()


def _source(path: str) -> str:
    return (DEPLOY / path).read_text()


def main() -> None:
    """Bring every carrier up to date."""
    for name in CARRIERS:
        path = DEPLOY / name
        path.write_text(embedded(path.read_text()))


if __name__ == "__main__":
    main()

"""The checked-in stubs are what the protos generate."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "varuna_runtime" / "wire" / "v1"


def test_the_checked_in_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "protos" / "generate.py", tmp_path], check=True)
    generated = {p.name: p.read_text() for p in tmp_path.iterdir()}
    checked_in = {p.name: p.read_text() for p in STUBS.glob("*_pb2*")}
    assert generated == checked_in

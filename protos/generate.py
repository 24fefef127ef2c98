"""Regenerate the checked-in stubs: `python protos/generate.py [OUT_DIR]`; needs grpcio-tools 1.76.0."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent
OUT = ROOT.parent / "varuna_runtime" / "wire" / "v1"


def generate(out: pathlib.Path) -> None:
    """Write `*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` of every proto into `out`."""
    sources = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("varuna/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        flags = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *flags, *sources], check=True)
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(pathlib.Path(scratch, "varuna", "v1").iterdir()):
            # protoc derives import paths from proto paths; our package lies elsewhere.
            text = re.sub(r"^from varuna\.v1 ", "from varuna_runtime.wire.v1 ", path.read_text(), flags=re.M)
            (out / path.name).write_text(text)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)

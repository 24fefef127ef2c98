"""`python -m varuna_runtime.agent`: an agent without the command line tool."""

import argparse
import sys
from pathlib import Path

from varuna_runtime.agent import main as agent
from varuna_runtime.agent.config import AgentConfig, insecure_plaintext, join_source, metadata_endpoint
from varuna_runtime.agent.notices.opening import Notices
from varuna_runtime.spec.errors import VarunaError


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="varuna_runtime.agent")
    parser.add_argument("--manager", default="", metavar="HOST:PORT", help="default: as the join ticket says")
    parser.add_argument(
        "--join", default=join_source(), metavar="SOURCE", help="of the join ticket; -: stdin"
    )
    parser.add_argument("--insecure-plaintext", action="store_true", default=insecure_plaintext())
    parser.add_argument("--node", required=True)
    parser.add_argument("--home", required=True, type=Path, help="this node's own folder")
    parser.add_argument("--slots", type=int, default=0, help="0: one per GPU, one without any")
    parser.add_argument("--host", default="", help="address that other nodes reach")
    parser.add_argument("--memory-bytes", type=int, default=0, help="per slot; 0: a share of the machine's")
    parser.add_argument("--copies-bytes", type=int, help="for copies of state; 0: none; default: a quarter")
    parser.add_argument("--device-kind", default="")
    parser.add_argument("--notices", type=Notices, default=Notices.FILE)
    parser.add_argument("--drain-on-term-s", type=float, default=0.0, metavar="SECONDS")
    given = vars(parser.parse_args())
    try:
        return agent.run(AgentConfig(**given, metadata_endpoint=metadata_endpoint(given["notices"])))
    except VarunaError as err:
        sys.stderr.write(f"varuna agent: {err}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

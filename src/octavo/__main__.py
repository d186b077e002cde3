"""The entry point of `octavo` and `python -m octavo`."""

from __future__ import annotations

import sys


def main() -> None:
    from octavo.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

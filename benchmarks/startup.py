"""From process start to the first token on stdout of `octavo generate`, model cached; and `octavo --help`."""

from __future__ import annotations

import subprocess
import sys
import time

from common import parser, show, spread


def until_output(command: list[str]) -> float:
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    return 1000 * seconds


def main() -> None:
    args = parser(__doc__).parse_args()
    octavo = [sys.executable, "-m", "octavo"]
    generate = [*octavo, "generate", "The capital of France is", "--max-tokens", "8"]
    if args.model:
        generate += ["--model", args.model]
    until_output(generate)
    rows = {
        "generate, first output, ms": spread([until_output(generate) for _ in range(args.repeat)]),
        "--help, first output, ms": spread([until_output([*octavo, "--help"]) for _ in range(args.repeat)]),
    }
    show("start-up", rows, args.json)


if __name__ == "__main__":
    main()

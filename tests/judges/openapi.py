"""Schemathesis: a server of a tiny checkpoint, held to its own /openapi.json by bodies that keep to it or do not."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.judges.report import ROOT, Verdict, tail

sys.path.insert(0, str(ROOT / "tests" / "model"))
sys.path.insert(0, str(ROOT / "tests" / "server"))
import tiny
from real_server import RealServer

BUDGET = 3000.0  # seconds of schemathesis
GRACE = 150.0  # seconds for it to end once it is interrupted
LEAST_CASES = 20_000
KEY = "a-key-of-the-judge"
SERVER = [
    *("--served-model-name", "tiny", "org/tiny"),
    *("--api-key", KEY),
    *("--max-model-len", "128"),
    *("--threads", "1"),
    *("--kv-cache-memory", "16MiB"),
    *("--scheduling-policy", "priority"),  # else no priority but 0 is taken
    "--enable-dev-mode",
]
# It wants every body taken that the schema allows. `refusal_has_a_reason` in the hooks, in its place, lets those
# refusals pass that no schema can state, and no others.
EXCLUDED = "positive_data_acceptance"
# Answers may take long where the machine has other things to do. With more workers than one Python's parser, which
# hypothesis asks about lambdas, now and then meets itself in another thread, and the route fails for it.
SETTINGS = [
    *("--checks", "all"),
    *("--workers", "1"),
    *("--request-timeout", "120", "--max-response-time", "120"),
    *("--continue-on-failure", "--no-shrink", "--no-color"),
]
CONFIG = f"""
hooks = {json.dumps(str(Path(__file__).with_name("openapi_hooks.py")))}
[checks.not_a_server_error]
# 504 is the answer to a timeout that the client sent; the hooks see to it that there was one.
expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


def run(options: argparse.Namespace) -> Verdict:
    """Passed if no check finds anything in LEAST_CASES cases or more, and the server is as before."""
    seed = 1 + secrets.randbelow(1 << 30) if options.seed is None else options.seed
    python = options.schemathesis or sys.executable
    if subprocess.run([python, "-c", "import schemathesis"], check=False, capture_output=True).returncode:
        raise SystemExit("This interpreter has no schemathesis; name one that has it: --schemathesis PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.write_checkpoint("llama", Path(folder) / "model")
        server = RealServer(Path(folder) / "log", *SERVER, command=("serve", str(model)))
        server.client.headers["authorization"] = f"Bearer {KEY}"
        try:
            report, faults, output = examine(server.url, Path(folder), python, options.examples, seed)
            faults += survives(server)
        finally:
            status = server.close()
        log = server.log.read_text(errors="replace")
    for word in ("Traceback", " ERROR ", " CRITICAL "):
        if (place := log.find(word)) >= 0:
            faults.append(f"the log holds {word}")
            print(log[place : place + 2000])
    faults += [f"the server ended with {status}"] if status else []
    lines = [
        f"Seed {seed}; every check of schemathesis, but in the place of {EXCLUDED}",
        "one that knows which refusals no schema can state.",
        "",
    ]
    if report is None:
        return Verdict(False, [*lines, *(f"- {fault}" for fault in faults), "", *tail(output)])
    count = report["test_cases"]["generated"]
    faults += [f"{count} cases are too few"] if count < LEAST_CASES else []
    faults += [f"{one['title']}, {one['count']} times: {', '.join(one['operations'])}" for one in report["failures"]]
    faults += [str(error) for error in report["errors"]]
    lines += [
        f"schemathesis {report['schemathesis_version']}: {report['operations']['tested']} operations, {count} cases, "
        f"{report['test_cases']['with_failures']} of them with failures."
        f"{'' if faults else ' Healthy and idle afterwards, no error in the log.'}",
        *(f"- {fault}" for fault in faults),
    ]
    return Verdict(not faults, lines)


def examine(
    url: str, folder: Path, python: str, examples: int, seed: int
) -> tuple[dict[str, Any] | None, list[str], str]:
    """Schemathesis' own report, if it left one; what is wrong with the run itself; what it printed."""
    config, result, output = (folder / name for name in ("schemathesis.toml", "result.json", "output"))
    config.write_text(CONFIG)
    command = [python, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    command += [f"{url}/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--seed", str(seed)]
    command += [*SETTINGS, "--exclude-checks", EXCLUDED, "--max-examples", str(examples)]
    command += ["--report", "json", "--report-json-path", str(result)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background inherits a deaf ear
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        output.open("wb") as file,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file) as process,
    ):
        faults = [] if ends_within(process, BUDGET) else [f"not done within {BUDGET:.0f} s"]
    printed = output.read_text(errors="replace")
    if process.returncode:
        print(printed)
    if result.exists():
        return json.loads(result.read_text()), faults, printed
    return None, [*faults, f"schemathesis ended with {process.returncode} and left no report"], printed


def ends_within(process: subprocess.Popen[bytes], budget: float) -> bool:
    """False if it had to be interrupted: once to end after its current cases, again to report at once."""
    for seconds in (budget, GRACE, GRACE):
        try:
            process.wait(seconds)
            return seconds == budget
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    process.kill()
    return False


def survives(server: RealServer) -> list[str]:
    """What is not as before. A stream whose client has left may need a moment to be noticed."""
    deadline = time.monotonic() + 20
    while not server.is_idle() and time.monotonic() < deadline:
        time.sleep(0.1)
    faults = [] if server.is_idle() else ["requests or blocks are left behind"]
    if server.client.get("/health").status_code != 200:
        faults.append("/health is not 200")
    status, reply = server.raw("/v1/completions", prompt="abc", max_tokens=4, temperature=0)
    return faults if status == 200 else [*faults, f"a plain completion got {status}: {reply}"]

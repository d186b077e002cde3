"""Schemathesis: a server of a tiny checkpoint, held to its own /openapi.json by bodies that keep to it or do not."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.judges.report import ROOT, Verdict

sys.path.insert(0, str(ROOT / "tests" / "model"))
sys.path.insert(0, str(ROOT / "tests" / "server"))
import tiny
from real_server import RealServer

BUDGET = 3000.0  # seconds of schemathesis
LEAST_CASES = 20_000
KEY = "a-key-of-the-judge"
SERVER = [
    *("--served-model-name", "tiny", "org/tiny"),
    *("--api-key", KEY),
    *("--max-model-len", "128"),
    *("--kv-cache-memory", "16MiB"),
    *("--scheduling-policy", "priority"),  # else no priority but 0 is taken
    "--enable-dev-mode",
]
# It wants every body taken that the schema allows. `refusal_has_a_reason` in the hooks, in its place, lets those
# refusals pass that no schema can state, and no others.
EXCLUDED = "positive_data_acceptance"
# Answers may take long where the machine has other things to do.
SETTINGS = [
    *("--checks", "all"),
    *("--workers", "4"),
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
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.write_checkpoint("llama", Path(folder) / "model")
        server = RealServer(Path(folder) / "log", *SERVER, command=("serve", str(model)))
        server.client.headers["authorization"] = f"Bearer {KEY}"
        try:
            report = examine(server.url, Path(folder), options, seed)
            faults = survives(server)
        finally:
            status = server.close()
        log = server.log.read_text(errors="replace")
    faults += [f"the log holds {word}" for word in ("Traceback", " ERROR ", " CRITICAL ") if word in log]
    faults += [f"the server ended with {status}"] if status else []
    count = report["test_cases"]["generated"]
    faults += [f"{count} cases are too few"] if count < LEAST_CASES else []
    faults += [f"{one['title']}, {one['count']} times: {', '.join(one['operations'])}" for one in report["failures"]]
    faults += [str(error) for error in report["errors"]]
    lines = [
        f"Seed {seed}, schemathesis {report['schemathesis_version']}; every check, but in the place of {EXCLUDED}",
        "one that knows which refusals no schema can state.",
        "",
        f"{report['operations']['tested']} operations, {count} cases, {report['test_cases']['with_failures']} of them "
        f"with failures. {'' if faults else 'Healthy and idle afterwards, no error in the log.'}",
        *(f"- {fault}" for fault in faults),
    ]
    return Verdict(not faults, lines)


def examine(url: str, folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Schemathesis' own report."""
    config, result = folder / "schemathesis.toml", folder / "result.json"
    config.write_text(CONFIG)
    command = [options.schemathesis or sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    command += [f"{url}/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--seed", str(seed)]
    command += [*SETTINGS, "--exclude-checks", EXCLUDED, "--max-examples", str(options.examples)]
    command += ["--report", "json", "--report-json-path", str(result)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=BUDGET, check=False, capture_output=True, text=True
    )
    if not result.exists():
        raise SystemExit(
            f"schemathesis did not run; name an interpreter that has it: --schemathesis PYTHON\n{done.stderr}"
        )
    if done.returncode:
        print(done.stdout)
    report: dict[str, Any] = json.loads(result.read_text())
    return report


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

"""What the judges share: calling the oracle, and writing a result into docs/judges.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = {
    "--oracle": "PYTHON",
    "--reference": "FOLDER",
    "--schemathesis": "PYTHON",
}  # options whose values are places on one machine
DOCUMENT = ROOT / "docs" / "judges.md"
HEADER = """# Judges

Checks that are too long, or need too much, to run on every change. `scripts/judge NAME` runs one and replaces its part
of this page. `parity` and `tiny` need an interpreter with torch and transformers for the other side: `--oracle PYTHON`.
`schemathesis` needs one that has schemathesis 4 from PyPI, its own if you like: `--schemathesis PYTHON`.
`vnni`, `avx512`, `amx` and `neon` need an emulator where the processor lacks the instructions:
[emulation.md](emulation.md).
`clients`, `langchain` and `lm-eval` need what `pip install '.[test,clients]'` brings.
"""


@dataclass(frozen=True)
class Verdict:
    """passed, and lines of Markdown with the figures."""

    passed: bool
    lines: list[str]


def ask_oracle(python: str | None, arguments: list[str], budget: float) -> None:
    """Runs oracle.py in `python`, or in this interpreter if it has torch. SystemExit if it fails or takes too long."""
    if python is None:
        if importlib.util.find_spec("torch") is None:
            raise SystemExit("This interpreter has no torch; name one that has torch and transformers: --oracle PYTHON")
        python = sys.executable
    # Of octavo the oracle needs the Python modules that read weights, not the native module.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    command = [python, str(Path(__file__).parent / "oracle.py"), *arguments]
    try:
        subprocess.run(command, check=True, env=environment, timeout=budget)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"The oracle took more than its {budget:.0f} seconds.") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"The oracle ended with code {error.returncode}.") from None


def run_script(name: str, *arguments: str) -> Verdict:
    """What a script in tests/native prints, passed if it ends with 0."""
    script = ROOT / "tests" / "native" / name
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return Verdict(done.returncode == 0, lines)


def run_pytest(name: str, budget: float, *options: str) -> Verdict:
    """How the tests in a file beside this one end, passed if none fails and some pass; a row for each that does not."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.xml"
        command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / name), f"--junitxml={result}"]
        # The suite's own settings turn what other people's packages warn of into errors.
        settings = ["-q", "--tb=short", "-p", "no:cacheprovider", "-W", "default", "-o", "addopts=", "-o", "timeout=0"]
        output = Path(folder) / "output"
        try:
            with output.open("wb") as file:
                done = subprocess.run(
                    [*command, *settings, *options], cwd=ROOT, timeout=budget, check=False, stdout=file, stderr=file
                )
            fault = f"pytest ended with {done.returncode} and ran no test."
        except subprocess.TimeoutExpired:
            fault = f"Not done within {budget:.0f} s."
        printed = output.read_text(errors="replace")
        print(printed)
        cases = list(ET.parse(result).getroot().iter("testcase")) if result.exists() else []
    if not cases:
        return Verdict(False, [fault, "", *tail(printed)])
    counts, rows = Counter[str](), []
    for case in cases:
        outcome, reason = "passed", ""
        for entry in case:
            if entry.tag in ("failure", "error", "skipped"):
                kind = entry.get("type", "").removeprefix("pytest.")
                outcome = {"skip": "skipped", "xfail": "xfail"}.get(kind, "FAILED")
                reason = " ".join((entry.get("message") or "").split())[:200].replace("|", "\\|")
        counts[outcome] += 1
        if outcome != "passed":
            rows.append(f"| {case.get('name')} | {outcome} | {reason} |")
    lines = [", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) + "."]
    if rows:
        lines += ["", "| not passed | | |", "|---|---|---|", *rows]
    return Verdict(counts["passed"] > 0 and not counts["FAILED"], lines)


def tail(printed: str, lines: int = 20) -> list[str]:
    """The end of what a program printed, as Markdown."""
    return ["```text", *printed.replace(str(ROOT), ".").splitlines()[-lines:], "```"]


def require(*modules: str) -> None:
    """SystemExit where a module of an extra is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"This interpreter has no {', '.join(missing)}: pip install '.[test,clients]'")


def versions(*packages: str) -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages) + "."


def write_result(name: str, title: str, verdict: Verdict, seconds: float) -> None:
    """Replaces the part of a judge in docs/judges.md."""
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else HEADER
    part = "\n".join(
        [
            f"## {name}",
            "",
            title,
            "",
            f"- date: {datetime.date.today().isoformat()}, {seconds:.0f} s",
            f"- machine: {machine()}",
            f"- command: `scripts/judge {' '.join([name, *shown_arguments()])}`",
            f"- verdict: **{'pass' if verdict.passed else 'FAIL'}**",
            "",
            *verdict.lines,
            "",
        ]
    )
    text, count = re.subn(rf"(?ms)^## {re.escape(name)}$.*?(?=^## |\Z)", lambda _: part + "\n", text)
    DOCUMENT.write_text((text if count else text.rstrip() + "\n\n" + part).rstrip() + "\n", encoding="utf-8")


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()}, Python {platform.python_version()}"


def shown_arguments() -> list[str]:
    """The arguments after the judge's name, without paths."""
    shown = []
    arguments = iter(sys.argv[2:])
    for argument in arguments:
        name, given, _ = argument.partition("=")
        if name in PATHS:
            argument = f"{name} {PATHS[name]}"
            if not given:
                next(arguments, None)
        shown.append(argument)
    return shown

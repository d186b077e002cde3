"""Times octavo and a peer on the same work, run by run in turn, each in a process of its own.

    python -m benchmarks.peers.run --peer llama_cpp --python ENVIRONMENT/bin/python --model x.gguf

Prompts are random token ids from a seed, output is greedy, EOS is ignored. A ratio says how many times as fast octavo
is, whatever the unit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common import Load, family, processor_seconds

from . import client
from .processes import START_SECONDS, Server, Worker, processor, server_command
from .report import Record, plot, summarise, table, warning
from .worker import Request
from .workloads import WORKLOADS, Workload, warm_up

PATIENCE, GLANCE = 5.0, 0.25  # seconds; in a glance the kernel counts 25 ticks of a processor
IDLE = 0.1  # of a processor: what servers take that wait
PEERS = {"llama_cpp": "llama.cpp", "openvino": "OpenVINO GenAI", "vllm": "vLLM"}


class InProcess:
    """An engine inside its worker."""

    def __init__(self, worker: Worker, **settings: Any):
        self.worker, self.process = worker, worker.process
        ready = worker.call("load", **settings)
        self.name, self.vocab = ready["engine"], ready["vocab"]

    def run(self, requests: list[Request], workload: Workload) -> tuple[list[list[float]], float]:
        reply = self.worker.call("run", requests=[vars(request) for request in requests], shared=workload.shared)
        return reply["requests"], reply["seconds"]


class OverHttp:
    """A server, and this process as its clients."""

    def __init__(self, server: Server):
        self.port, self.process = server.port, server.process
        self.model = client.wait_until_ready(self.port, lambda: self.process.poll() is None, START_SECONDS)

    def run(self, requests: list[Request], workload: Workload) -> tuple[list[list[float]], float]:
        clock, seconds = client.run(self.port, self.model, requests, workload.streams)
        return clock.entries, seconds


def settle(engines: Mapping[str, InProcess | OverHttp]) -> None:
    """Waits until no engine computes: threads of OpenMP spin for 0.2 seconds after their work, in the other's run."""
    pids = [engine.process.pid for engine in engines.values()]
    before, deadline = spent(pids), time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(GLANCE)
        now = spent(pids)
        if now - before < IDLE * GLANCE:
            return
        before = now
    print(f"an engine is busy {PATIENCE:.0f} s after its run", file=sys.stderr)


def spent(pids: list[int]) -> float:
    return sum(processor_seconds(member) for pid in pids for member in family(pid))


def measure(engine: InProcess | OverHttp, workload: Workload, requests: list[Request]) -> Record:
    load = Load(engine.process.pid)
    times, seconds = engine.run(requests, workload)
    foreign = load.foreign()
    wrong = [i for i, request in enumerate(requests) if times[i][2] != request.output]
    if wrong:
        raise SystemExit(f"{workload.name}: request {wrong[0]} has {times[wrong[0]][2]} tokens, not what was asked.")
    metrics = {metric.name: metric.of(requests, times, seconds) for metric in workload.metrics}
    return {"workload": workload.name, "metrics": metrics, "foreign": foreign}


def alternate(
    engines: Mapping[str, InProcess | OverHttp], workload: Workload, vocab: int, args: argparse.Namespace
) -> dict[str, list[Record]]:
    """Runs of each engine, in turn; who begins changes from pair to pair."""
    runs: dict[str, list[Record]] = {name: [] for name in engines}
    for turn in range(-1, args.repeat):  # the first warms up
        requests = workload.requests(args.seed * 1_000_000 + (turn + 1) * 1000, vocab)
        for name in sorted(engines, reverse=turn % 2 == 0):
            settle(engines)
            if turn < 0:
                engines[name].run(warm_up(requests), workload)
                continue
            runs[name].append(record := measure(engines[name], workload, requests))
            figures = ", ".join(
                f"{metric.name} {record['metrics'][metric.name]:.1f} {metric.unit}" for metric in workload.metrics
            )
            print(f"  {workload.name} {turn + 1} {name}: {figures}; others {record['foreign']:.0%}", file=sys.stderr)
    return runs


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--python", required=True, help="the interpreter of the peer's environment")
    parser.add_argument("--model", required=True, help="a file or folder that both can read")
    parser.add_argument("--peer-model", help="the same model in a form of the peer's own, where it cannot")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="for both; default: all cores"
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), metavar="NAME",
                        help=", ".join(f"{w.name}: {w.about}" for w in WORKLOADS.values()))  # fmt: skip
    parser.add_argument("--repeat", type=int, default=5, help="runs of each engine on each workload (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--option", nargs="*", action="extend", default=[], metavar="NAME=VALUE", help="for the peer; see its adapter"
    )
    parser.add_argument("--octavo-option", nargs="*", action="extend", default=[], metavar="NAME=VALUE",
                        help="for octavo")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run to FILE")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw the ratios (needs matplotlib)")
    args = parser.parse_args()
    if args.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'octavo[bench]'")
    args.model = os.path.abspath(args.model)
    return args


def options(texts: list[str]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts)


def main() -> None:
    args = arguments()
    pythons = {"octavo": sys.executable, args.peer: args.python}
    settings: dict[str, dict[str, Any]] = {
        "octavo": {"model": args.model, "options": options(args.octavo_option), "threads": args.threads},
        args.peer: {"model": args.peer_model or args.model, "options": options(args.option), "threads": args.threads},
    }
    chosen = [WORKLOADS[name] for name in args.workloads]
    load_before = os.getloadavg()[0]
    runs: dict[str, dict[str, list[Record]]] = {}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, python)) for name, python in pythons.items()}
        inside = {name: InProcess(worker, **settings[name]) for name, worker in workers.items()}
        vocab = min(engine.vocab for engine in inside.values() if engine.vocab)
        names = {name: engine.name for name, engine in inside.items()}
        for workload in chosen:
            if not workload.streams:
                runs[workload.name] = alternate(inside, workload, vocab, args)
    # A second start: a server and a worker of each at once would be four models.
    if over_http := [workload for workload in chosen if workload.streams]:
        with ExitStack() as stack:
            commands = {name: server_command(name, pythons[name], settings[name]) for name in pythons}
            if all(command.argv for command in commands.values()):
                servers = {n: OverHttp(stack.enter_context(Server(command))) for n, command in commands.items()}
                for workload in over_http:
                    runs[workload.name] = alternate(servers, workload, vocab, args)
            else:
                print(f"  {names[args.peer]} has no server here: nothing is run over HTTP", file=sys.stderr)
    if not runs:
        raise SystemExit("Nothing was run.")
    rows = [row for name, pair in runs.items() for row in summarise(WORKLOADS[name], pair["octavo"], pair[args.peer])]
    every = [record for pair in runs.values() for records in pair.values() for record in records]

    peer, model = PEERS[args.peer], Path(args.model).name
    print(f"{names['octavo']} and {names[args.peer]}, {model}, {args.threads} threads.")
    print(f"Medians of {args.repeat}, in brackets the least and the most.\n")
    print(table(rows, peer))
    print(f"\nLoad average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after; {warning(every)}.")
    if args.json:
        about = {"engines": names, "settings": settings, "seed": args.seed, "processor": processor()}
        args.json.write_text(json.dumps({**about, "rows": rows, "runs": runs}, indent=1) + "\n")
    if args.plot:
        plot(rows, peer, model, args.plot)


if __name__ == "__main__":
    main()

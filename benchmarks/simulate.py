"""A day of requests through the shipped Scheduler and BlockPool, in simulated time: goodput, queue time and inter-token
latency, beside two older ways to batch.

Nothing is computed. A step takes 10 ms, 0.1 ms for each of its tokens and 0.02 us for each cached token that they read,
about what a 135M model needs on two cores. Lengths are log-normal and cut off: prompts of median 256 (sigma 1, at most
4,096), outputs of median 128 (sigma 0.8, at most 1,024). Requests arrive as a Poisson process, or in bursts: 20 s
at 2.5 times the rate, then a minute at half of it, both exponentially distributed.

octavo: the scheduler as it is. fcfs: the same, first come, first served: it does not look at tenants. unchunked: that
without chunked prefill: a prompt is computed whole in one step. static: up to as many requests as may run are taken
together, and the next ones when the last of them has ended; their rows are computed until then.

Goodput counts requests whose first token came within 2 s and whose tokens after it came within 100 ms each on average.
A tenant is who sends a request; the first of them sends half of all. No prompt is like another, so that the prefix
cache is off.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from octavo.engine.batch import Output, RangeOutput, ScheduledRange, TokenOutput
from octavo.engine.request import EVERYONE, Request, Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.sampling_params import SamplingParams

STEP, TOKEN, READ = 10e-3, 0.1e-3, 0.02e-6  # seconds
LONGEST_PROMPT, LONGEST_OUTPUT = 4096, 1024
SEQUENCES, BUDGET, BLOCK, BLOCKS = 64, 512, 16, 4096
FIRST_TOKEN, NEXT_TOKEN = 2.0, 0.1  # seconds, of a request that counts
NOWHERE = frozenset[int]()


@dataclass(frozen=True, slots=True)
class Arrival:
    time: float
    prompt: int  # tokens
    output: int
    tenant: int

    def request(self, number: int, tenant: Tenant) -> Request:
        params = SamplingParams(max_tokens=self.output, ignore_eos=True)
        prompt = (1,) * self.prompt
        return Request(str(number), prompt, params, 0, self.output, NOWHERE, NOWHERE, tenant=tenant)


def arrivals(count: int, rate: float, bursty: bool, tenants: int, seed: int) -> Iterator[Arrival]:
    generator = random.Random(seed)
    now, calm, change = 0.0, True, 0.0
    for _ in range(count):
        wait = generator.expovariate(1.0)
        while bursty:  # through changes of the rate, until the wait is used up
            pace = 0.5 if calm else 2.5
            left = (change - now) * rate * pace
            if wait <= left:
                wait /= pace
                break
            wait, now, calm = wait - left, change, not calm
            change = now + generator.expovariate(1 / (60 if calm else 20))
        now += wait / rate
        prompt = min(LONGEST_PROMPT, math.ceil(generator.lognormvariate(math.log(256), 1.0)))
        output = min(LONGEST_OUTPUT, math.ceil(generator.lognormvariate(math.log(128), 0.8)))
        tenant = 0 if tenants == 1 or generator.random() < 0.5 else generator.randrange(1, tenants)
        yield Arrival(now, prompt, output, tenant)


class Quantiles:
    """Seconds, counted in bins that differ by 2 %: as many as there are, in little memory."""

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0

    def add(self, value: float, times: int = 1) -> None:
        place = round(math.log(max(value, 1e-4)) / math.log(1.02))
        self.bins[place] = self.bins.get(place, 0) + times
        self.count += times

    def at(self, share: float) -> float:
        seen = 0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= share * self.count:
                return 1.02**place
        return 0.0


@dataclass(slots=True)
class Report:
    good: int = 0
    tokens: int = 0
    end: float = 0.0
    queue: dict[int, Quantiles] = field(default_factory=dict)  # by tenant
    between: Quantiles = field(default_factory=Quantiles)  # two tokens of a request

    def started(self, arrival: Arrival, now: float) -> None:
        self.queue.setdefault(arrival.tenant, Quantiles()).add(now - arrival.time)

    def ended(self, arrival: Arrival, first: float, now: float) -> None:
        self.tokens += arrival.output
        self.end = max(self.end, now)
        later = max(1, arrival.output - 1)
        self.good += first - arrival.time <= FIRST_TOKEN and (now - first) / later <= NEXT_TOKEN

    def row(self, seconds: float) -> dict[str, float]:
        everyone = Quantiles()
        for queue in self.queue.values():
            for place, times in queue.bins.items():
                everyone.add(1.02**place, times)
        return {
            "goodput, requests/s": self.good / self.end,
            "good, %": 100 * self.good / everyone.count,
            "output tok/s": self.tokens / self.end,
            "queue s, p50": everyone.at(0.5),
            "queue s, p99": everyone.at(0.99),
            "between tokens ms, p50": 1000 * self.between.at(0.5),
            "between tokens ms, p99": 1000 * self.between.at(0.99),
            "between tokens ms, most": 1000 * self.between.at(1.0),
            **{f"queue s, p99, tenant {t}": self.queue[t].at(0.99) for t in sorted(self.queue) if len(self.queue) > 1},
            "seconds to simulate": seconds,
        }


@dataclass(slots=True)
class Running:
    arrival: Arrival
    first: float = -1.0
    last: float = 0.0


def scheduled(coming: Iterator[Arrival], report: Report, chunked: bool = True, fair: bool = True) -> None:
    longest = LONGEST_PROMPT + LONGEST_OUTPUT
    config = SchedulerConfig(
        max_num_seqs=SEQUENCES, max_num_batched_tokens=BUDGET if chunked else longest, max_model_len=longest,
        max_output_rows=SEQUENCES, enable_chunked_prefill=chunked, enable_prefix_caching=False,
    )  # fmt: skip
    scheduler = Scheduler(config, [CacheGroup("full", BLOCKS, BLOCK)])
    now, number = 0.0, 0
    waiting: dict[str, Arrival] = {}
    running: dict[str, Running] = {}
    decodes: list[ScheduledRange] = []  # of the last step
    read = 0  # cached tokens, by them
    following = next(coming, None)
    while following is not None or scheduler.has_work():
        if not scheduler.has_work() and following is not None:
            now = max(now, following.time)
        while following is not None and following.time <= now:
            scheduler.add(following.request(number, Tenant(str(following.tenant)) if fair else EVERYONE))
            waiting[str(number)] = following
            following, number = next(coming, None), number + 1
        batch = scheduler.schedule()
        assert batch is not None
        steady = batch.decodes is decodes  # then each of them had a token in the step before
        if not steady:
            settle(decodes, running, now)
            decodes = batch.decodes
            read = sum(range_.start for range_ in decodes)
        read += len(decodes)
        outputs: list[Output] = [1] * len(decodes)
        others = 0
        for range_ in batch.others:
            name = range_.sequence.request.request_id
            if name in waiting:
                running[name] = Running(waiting.pop(name))
                report.started(running[name].arrival, now)
            others += range_.start + range_.num_tokens
            outputs.append(RangeOutput([TokenOutput(1)] * len(range_.sample_indices)))
        step = STEP + TOKEN * batch.num_tokens + READ * (read + others)
        before, now = now, now + step
        news = scheduler.commit(batch, outputs)
        num_next = len(news.decodes) if steady else 0
        if steady and news.decodes is not decodes:  # some have ended
            settle(decodes, running, before)
        for output in news.others if steady else news:
            request = running[output.request_id]
            if request.last == before:  # nearly all
                num_next += 1
            elif request.first < 0:
                request.first = now
            else:
                report.between.add(now - request.last)
            request.last = now
            if output.finish_reason is not None:
                report.ended(request.arrival, request.first, now)
                del running[output.request_id]
        report.between.add(step, num_next)


def settle(decodes: list[ScheduledRange], running: dict[str, Running], last: float) -> None:
    """Writes down when sequences had their last token that had one each in every step until then."""
    for range_ in decodes:
        if (request := running.get(range_.sequence.request.request_id)) is not None:
            request.last = last


def static(coming: Iterator[Arrival], report: Report) -> None:
    now = 0.0
    following = next(coming, None)
    while following is not None:
        now = max(now, following.time)
        batch: list[Arrival] = []
        while following is not None and following.time <= now and len(batch) < SEQUENCES:
            longest = max(arrival.prompt + arrival.output for arrival in [*batch, following])
            if (len(batch) + 1) * longest > BLOCKS * BLOCK:
                break
            batch.append(following)
            following = next(coming, None)
        for arrival in batch:
            report.started(arrival, now)
        tokens = sum(arrival.prompt for arrival in batch)
        now += STEP + (TOKEN + READ) * tokens
        first, step = now, 0.0
        ends = sorted(batch, key=lambda arrival: arrival.output)
        for made in range(1, ends[-1].output + 1):
            if made > 1:
                tokens += len(batch)
                step = STEP + TOKEN * len(batch) + READ * tokens
                now += step
                report.between.add(step, len(ends))
            while ends and ends[0].output == made:
                report.ended(ends.pop(0), first, now)


POLICIES: dict[str, Callable[[Iterator[Arrival], Report], None]] = {
    "octavo": scheduled,
    "fcfs": partial(scheduled, fair=False),
    "unchunked": partial(scheduled, chunked=False, fair=False),
    "static": static,
}


def simulated(policy: str, coming: Iterator[Arrival], facts: dict[str, str], every: int) -> dict[str, float]:
    """What comes of a policy; a long run says how it stands, as a line of JSON, each time so many have arrived."""
    report, start = Report(), time.process_time()

    def watched() -> Iterator[Arrival]:
        for number, arrival in enumerate(coming):
            if every and number and number % every == 0:
                row = report.row(time.process_time() - start)
                print(json.dumps({**facts, "requests": number, **row}), flush=True)
            yield arrival

    POLICIES[policy](watched(), report)
    return report.row(time.process_time() - start)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=5000)
    options.add_argument("--rate", type=float, default=6.0, help="Requests a second, on average.")
    options.add_argument("--tenants", type=int, default=1)
    options.add_argument("--policies", nargs="*", choices=[*POLICIES], default=[*POLICIES])
    options.add_argument("--arrivals", nargs="*", choices=["Poisson", "bursts"], default=["Poisson", "bursts"])
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true", help="Print JSON: a line as often as --every says.")
    options.add_argument("--every", type=int, default=100_000, help="Requests of a policy between two lines of JSON.")
    args = options.parse_args()
    table: dict[str, dict[str, float]] = {}
    for kind in args.arrivals:
        for policy in args.policies:
            coming = arrivals(args.requests, args.rate, kind == "bursts", args.tenants, args.seed)
            facts = {"arrivals": kind, "policy": policy}
            row = table[f"{kind}, {policy}"] = simulated(policy, coming, facts, args.every if args.json else 0)
            if args.json:
                print(json.dumps({**facts, "requests": args.requests, **row}), flush=True)
    if args.json:
        return
    print(f"{args.requests:,} requests, {args.rate:g} a second")
    for column in dict.fromkeys(chain.from_iterable(table.values())):
        print(f"  {column}")
        for name, row in table.items():
            print(f"    {name:24s} {row[column]:10.2f}")


if __name__ == "__main__":
    main()

"""benchmarks/simulate.py: the same requests through every policy, all of them to their ends."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import simulate

COUNT = 60


@pytest.mark.parametrize("bursty", [False, True])
@pytest.mark.parametrize("policy", [*simulate.POLICIES])
def test_every_request_is_served(policy: str, bursty: bool) -> None:
    def run():
        report = simulate.Report()
        simulate.POLICIES[policy](simulate.arrivals(COUNT, 6.0, bursty, 3, seed=1), report)
        return report

    asked = list(simulate.arrivals(COUNT, 6.0, bursty, 3, seed=1))
    report = run()
    assert report.tokens == sum(arrival.output for arrival in asked)
    assert report.between.count == report.tokens - COUNT  # every token but the first ones
    assert {tenant: queue.count for tenant, queue in report.queue.items()} == {
        tenant: sum(arrival.tenant == tenant for arrival in asked) for tenant in range(3)
    }
    # No step, and so no wait for a token, is shorter than an empty one; a chunked one is not longer than its budget.
    assert report.between.at(0.0) > 0.98 * simulate.STEP
    if policy in ("octavo", "fcfs"):
        longest = simulate.STEP + simulate.BUDGET * simulate.TOKEN + simulate.SEQUENCES * 5120 * simulate.READ
        assert report.between.at(1.0) < 1.02 * longest
    assert run().row(0.0) == report.row(0.0)


def test_bursts_bring_as_many_requests_on_average() -> None:
    for bursty in (False, True):
        *_, last = simulate.arrivals(20_000, 6.0, bursty, 1, seed=2)
        assert 20_000 / last.time == pytest.approx(6.0, rel=0.15)

"""Shares of the computed work: what the paper on virtual token counters proves, measured from the batches alone."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from engine_world import VOCAB, World, request

from octavo.engine import fair_share
from octavo.engine.batch import Batch, RangeOutput, TokenOutput
from octavo.engine.request import EVERYONE, Request, Status, Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig

A, B = Tenant("a"), Tenant("b")
BLOCKS, BLOCK_SIZE, SEQS = 64, 8, 8
# The most work of what can run at once: every slot of the cache computed, with a row of logits each. It is the U of the
# paper, max(w_p * L_input, w_q * M) for w_p = 1 and w_q = 2, which holds where nothing is preempted.
MOST = 2 * BLOCKS * BLOCK_SIZE


class Driver:
    """A scheduler whose samples are drawn at random, and the work that its batches hold for each tenant and user."""

    def __init__(self, *, seqs: int = SEQS, budget: int = 64) -> None:
        config = SchedulerConfig(seqs, budget, 300, 64)
        self.scheduler = Scheduler(config, [CacheGroup("full", BLOCKS, BLOCK_SIZE)])
        self.random = random.Random(5)
        self.work: Counter[str] = Counter()
        self.work_of_users: Counter[tuple[str, bytes]] = Counter()
        self.num_added = self.num_steps = 0
        self.started: list[str] = []  # in the order of their first step

    def add(self, tenant: Tenant, user: bytes = b"", prompt: int = 20, max_tokens: int = 20, priority: int = 0) -> str:
        self.num_added += 1
        # No two prompts begin alike: what the cache has would make the work of the tenants incomparable.
        token_ids = [self.num_added % VOCAB, self.num_added // VOCAB, *self.random.choices(range(VOCAB), k=prompt - 2)]
        name = f"{tenant.name}{self.num_added}"
        asked = request(name, token_ids, max_tokens=max_tokens, tenant=tenant, user=user, priority=priority)
        self.scheduler.add(asked)
        return name

    def keep_waiting(self, tenant: Tenant, user: bytes = b"", **sizes: int) -> None:
        """So much that a step cannot take all of it: who has nothing left is not backlogged, as the paper has it."""
        waiting = sum((s.request.tenant, s.request.user) == (tenant, user) for s in self.scheduler.waiting)
        for _ in range(waiting, SEQS + 1):
            self.add(tenant, user, **sizes)

    def step(self) -> None:
        self.num_steps += 1
        batch = self.scheduler.schedule()
        assert batch is not None, "the scheduler is stuck"
        self._account(batch)
        samples = ([TokenOutput(self.random.randrange(VOCAB)) for _ in r.sample_indices] for r in batch.ranges)
        self.scheduler.commit(batch, [RangeOutput(tokens) for tokens in samples])
        if self.num_steps % 20 == 0:
            self.scheduler.check()

    def _account(self, batch: Batch) -> None:
        for scheduled in batch.ranges:
            asked: Request = scheduled.sequence.request
            cost = scheduled.num_tokens + len(scheduled.sample_indices)
            self.work[asked.tenant.name] += cost
            self.work_of_users[asked.tenant.name, asked.user] += cost
            if asked.request_id not in self.started:
                self.started.append(asked.request_id)


def spread(values: list[float]) -> float:
    """The most by which the difference of two totals changes over any interval."""
    return max(values) - min(values)


def test_one_request_does_not_wait_for_five_hundred_of_another() -> None:
    def wait_of(tenant: Tenant) -> tuple[int, int]:
        """The work done for others, and how many of their requests started, while the last request waited."""
        driver = Driver()
        for _ in range(500):
            driver.add(A)
        for _ in range(40):
            driver.step()
        before, num_started = driver.work.total(), len(driver.started)
        last = driver.add(tenant)
        while last not in driver.started:
            driver.step()
        return driver.work.total() - before, driver.started.index(last) - num_started

    work, num_passed = wait_of(B)
    assert work <= MOST  # of one other tenant: the paper's 2 * (n - 1) * U over the rate, and less
    assert num_passed <= 1, "the one that was first by arrival, at equal counters"
    work, num_passed = wait_of(A)
    assert work > 10 * MOST and num_passed > 400, "or this test would prove nothing"


@pytest.mark.parametrize("sizes", [({}, {}), ({"prompt": 60, "max_tokens": 3}, {"prompt": 4, "max_tokens": 40})])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_tenants_that_keep_asking_get_work_by_weight(weight: float, sizes: tuple[dict, dict]) -> None:
    light, heavy = Tenant("light"), Tenant("heavy", weight)
    driver = Driver()
    differences = [0.0]
    while driver.work.total() < 30 * MOST:
        driver.keep_waiting(light, **sizes[0])
        driver.keep_waiting(heavy, **sizes[1])
        driver.step()
        differences.append(driver.work["light"] - driver.work["heavy"] / weight)
    assert driver.scheduler.num_preemptions == 0
    assert spread(differences) <= 2 * MOST
    assert driver.work["heavy"] / driver.work["light"] == pytest.approx(weight, rel=0.1)


def test_who_was_away_gets_no_more_afterwards() -> None:
    driver = Driver()
    for _ in range(400):
        driver.keep_waiting(A)
        driver.step()
    differences = [0.0]
    before = driver.work["a"]
    assert before > 4 * MOST
    for _ in range(400):
        driver.keep_waiting(A)
        driver.keep_waiting(B)
        driver.step()
        differences.append(driver.work["b"] - (driver.work["a"] - before))
    assert spread(differences) <= 2 * MOST


def test_users_share_what_their_tenant_gets() -> None:
    """Four users of one key get together what the one of another gets, and each as much as the next."""
    driver = Driver()
    users = [bytes([number]) for number in range(4)]
    while driver.work.total() < 30 * MOST:
        for user in users:
            driver.keep_waiting(A, user)
        driver.keep_waiting(B)
        driver.step()
    assert abs(driver.work["a"] - driver.work["b"]) <= 2 * MOST
    of_users = [driver.work_of_users["a", user] for user in users]
    assert spread([float(work) for work in of_users]) <= 2 * MOST and min(of_users) > 2 * MOST


def test_equal_tenants_go_by_arrival() -> None:
    driver = Driver(seqs=1)
    names = [driver.add(tenant) for tenant in (B, A, EVERYONE)]
    while driver.scheduler.has_work():
        driver.step()
    assert driver.started == names


def test_a_class_goes_first_whatever_its_tenants_have_had() -> None:
    """Shares are those of a priority class: what A computed at 1 does not count at 0."""
    driver = Driver(seqs=1)
    for _ in range(3):
        driver.add(A, priority=1)
    for _ in range(30):
        driver.step()
    later = [driver.add(A, priority=0), driver.add(B, priority=0), driver.add(B, priority=1)]
    while driver.scheduler.has_work():
        driver.step()
    assert [driver.started.index(name) for name in later[:2]] == [2, 3]
    assert driver.started.index(later[2]) == 4, "ahead of the third of A, who has had two"


def test_cached_tokens_cost_nothing() -> None:
    driver = Driver()
    costs = []
    for tenant in (A, B):
        driver.scheduler.add(request(tenant.name, list(range(40)), max_tokens=1, tenant=tenant))
        driver.step()
        costs.append(driver.work[tenant.name])
    assert costs == [40 + 1, 8 + 1]
    counters = [share.counter for share in shares_in(driver.scheduler) if share.name in ("a", "b")]
    assert counters == [costs[0], sum(costs)], "B begins where A was"


def shares_in(scheduler: Scheduler) -> Iterator[fair_share.Share]:
    shares = [scheduler.waiting._root]
    for share in shares:
        yield share
        shares += share.children.values()


def test_users_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "MAX_IDLE_SHARES", 50)
    driver = Driver()
    most = 0
    for number in range(400):
        driver.add(A, b"%d" % number, prompt=3, max_tokens=2, priority=number % 7)
        driver.step()
        most = max(most, sum(1 for _ in shares_in(driver.scheduler)))
    assert most <= 50 + 3 * SEQS
    while driver.scheduler.has_work():
        driver.step()


def test_who_is_forgotten_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "MAX_IDLE_SHARES", 2)
    driver = Driver()
    while driver.work.total() < 10 * MOST:
        driver.keep_waiting(A, b"steady")
        driver.add(A, b"%d" % driver.num_steps, prompt=3, max_tokens=1)  # each as if new
        driver.step()
    counters = [s.share.counter for s in driver.scheduler.waiting]
    assert spread(counters) <= MOST


def test_ever_new_names_do_not_starve_a_known_one() -> None:
    driver = Driver()
    for _ in range(SEQS):
        driver.add(A, b"known", max_tokens=40)
    for _ in range(20):
        driver.step()
    for number in range(SEQS):
        driver.add(A, b"first %d" % number)
    known = driver.add(A, b"known")
    before = driver.work.total()
    while known not in driver.started:
        waiting = len(driver.scheduler.waiting)
        for number in range(waiting, SEQS + 2):
            driver.add(A, b"%d %d" % (driver.num_steps, number))
        driver.step()
        assert driver.work.total() - before <= 4 * MOST, "it waits for ever"


def test_tenants_do_not_preempt_each_other_for_ever() -> None:
    """Ten sequences of two tenants that each grow to half of the cache: one after the other gets to its end."""
    driver = Driver()
    for number in range(10):
        driver.add((A, B)[number % 2], prompt=4, max_tokens=BLOCKS * BLOCK_SIZE // 2 - 4)
    while driver.scheduler.has_work():
        running = driver.scheduler.running
        first = running[0] if running else None
        driver.step()
        assert first is None or first.status is not Status.WAITING
    assert driver.scheduler.num_preemptions > 3, "or this test would prove nothing"
    assert driver.num_steps < 10 * BLOCKS * BLOCK_SIZE


def test_a_prompt_that_does_not_fit_holds_its_place_against_other_tenants() -> None:
    world = World(SchedulerConfig(16, 512, 160, 64), [CacheGroup("full", 40, 4)])
    rng = random.Random(3)
    world.add(request("running", rng.choices(range(VOCAB), k=40), max_tokens=40, tenant=A))
    world.step()
    world.add(request("giant", rng.choices(range(VOCAB), k=140), max_tokens=10, tenant=B))
    for index in range(5):
        world.add(request(f"small{index}", [index, *rng.choices(range(VOCAB), k=4)], max_tokens=4, tenant=A))
    world.run()
    world.verify()
    assert list(dict.fromkeys(r[0] for batch in world.batches for r in batch))[:2] == ["running", "giant"]


def test_waiting_for_a_prefix_passes_the_turn_on() -> None:
    """Two of A wait for the prompt that a third computes; meanwhile B's goes ahead, and then they go in their order."""
    world = World(SchedulerConfig(8, 16, 200, 64), [CacheGroup("full", 100, 4)])
    rng = random.Random(4)
    prompt = rng.choices(range(VOCAB), k=60)
    for name in ("owner", "second", "third"):
        world.add(request(name, prompt, max_tokens=2, tenant=A))
    world.step()
    world.add(request("other", rng.choices(range(VOCAB), k=10), max_tokens=2, tenant=B))
    world.run()
    world.verify()
    order = list(dict.fromkeys(r[0] for batch in world.batches for r in batch))
    assert order.index("second") < order.index("third")
    assert world.results["second", 0].num_cached == 56


def test_picking_the_next_costs_the_same_however_many_wait() -> None:
    """Of one tenant; counted in comparisons of sequences, as time would be noise."""
    compared = 0

    class Counted(tuple):
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return tuple.__lt__(self, other)  # type: ignore[operator]

    def comparisons(num_waiting: int) -> int:
        driver = Driver(seqs=4)
        for _ in range(num_waiting):
            driver.add(A)
        for sequence in driver.scheduler.waiting:
            sequence.order = Counted(sequence.order)
        nonlocal compared
        compared = 0
        scheduler = driver.scheduler
        scheduler.check: Callable[[], None] = lambda: None  # type: ignore[method-assign, misc]
        for _ in range(30):
            driver.step()
        return compared

    assert comparisons(2000) <= comparisons(20) + 30 * 4 * 8

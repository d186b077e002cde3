"""L1 and L2 under mixtures of adds, steps, aborts, forks, drafts, preemptions, resets, windows and steps in flight."""

import random

import pytest
from engine_world import VOCAB, World, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.request import EVERYONE, Tenant
from octavo.engine.scheduler import CacheGroup, SchedulerConfig
from octavo.errors import RequestError
from octavo.sampling_params import BeamSearchParams

CONTEXT = 40
TENANTS = [EVERYONE, Tenant("light", 0.5), Tenant("heavy", 4.0)]
PREFIXES = [random.Random(seed).choices(range(VOCAB), k=24) for seed in range(3)]


def groups_of(windows: list[int], block_size: int, budget: int, spare: int) -> list[CacheGroup]:
    """The smallest pools that are allowed, and `spare` blocks more."""
    groups = []
    for window in windows:
        most = min(window + min(budget, CONTEXT), CONTEXT) if window else CONTEXT
        num_blocks = -(-most // block_size) + (window > 0) + spare
        groups.append(CacheGroup("window" if window else "full", num_blocks, block_size, window))
    return groups


@st.composite
def worlds(draw: st.DrawFn) -> World:
    chunked = draw(st.booleans())
    budget = draw(st.sampled_from([1, 3, 7, 16, 64])) if chunked else 64
    config = SchedulerConfig(
        max_num_seqs=draw(st.sampled_from([1, 2, 4, 16])),
        max_num_batched_tokens=budget,
        max_model_len=CONTEXT,
        max_output_rows=draw(st.sampled_from([4, 5, 9, 100])),
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 4])),
        context_cost=draw(st.sampled_from([0.0, 0.1])),
    )
    windows = draw(st.sampled_from([[0], [0, 5], [5, 0], [0, 3, 9], [6]]))
    groups = groups_of(windows, draw(st.sampled_from([1, 2, 4, 8])), budget, draw(st.integers(0, 30)))
    return World(config, groups, ahead=draw(st.integers(0, 2)), drafts=draw(st.sampled_from([0, 3])))


PENALTIES = [1.0, 0.0, 2.0, -0.5]
STOPPING = [False, True, "never"]


def beams(width: int, length_penalty: float, early_stopping) -> BeamSearchParams:
    return BeamSearchParams(
        beam_width=width, max_tokens=CONTEXT, length_penalty=length_penalty, early_stopping=early_stopping
    )


def add(world: World, name: str, asked: dict) -> None:
    """Beams may be refused: the walks draw more of them than some worlds can hold."""
    try:
        world.add(request(name, **asked))
    except RequestError as error:
        assert error.param == "beam_width"


@st.composite
def asked(draw: st.DrawFn) -> dict:
    prompt = draw(st.sampled_from(PREFIXES))[: draw(st.integers(0, 24))]
    prompt = prompt + draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8))
    max_tokens = draw(st.integers(0, CONTEXT - len(prompt)))
    width = draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
    if width:
        return {
            "prompt": prompt,
            "max_tokens": max_tokens or 1,
            "eos": frozenset(draw(st.lists(st.integers(0, VOCAB - 1), max_size=12))),
            "priority": draw(st.sampled_from([0, 0, 1, 2])),
            "tenant": draw(st.sampled_from(TENANTS)),
            "user": draw(st.sampled_from([b"", b"", b"another"])),
            "salt": draw(st.sampled_from([None, None, "a"])),
            "n": draw(st.integers(1, width)),
            "prompt_logprobs": draw(st.sampled_from([None, None, None, 1])),
            "beams": beams(width, draw(st.sampled_from(PENALTIES)), draw(st.sampled_from(STOPPING))),
        }
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, min(3, max_tokens))),
        "eos": frozenset(draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))),
        "seed": draw(st.integers(0, 3)),
        "priority": draw(st.sampled_from([0, 0, 1, 2])),
        "tenant": draw(st.sampled_from(TENANTS)),
        "user": draw(st.sampled_from([b"", b"", b"another"])),
        "salt": draw(st.sampled_from([None, None, "a"])),
        "n": draw(st.sampled_from([1, 1, 2, 4])),
        "prompt_logprobs": draw(st.sampled_from([None, None, None, 1])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 1.0])),
    }


operations = st.lists(
    st.one_of(asked(), st.just("step"), st.just("step"), st.just("step"), st.just("reset"), st.integers(0, 100)),
    max_size=80,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds(), operations)
def test_every_request_gets_its_own_tokens(world: World, steps: list) -> None:
    for number, step in enumerate(steps):
        if step == "step":
            world.step()
        elif step == "reset":
            world.scheduler.reset_prefix_cache()
        elif isinstance(step, int):
            live = sorted(world.scheduler.requests)
            if live:
                world.abort(live[step % len(live)], "timeout" if step % 2 else "abort")
        else:
            add(world, f"r{number}", step)
        world.check()
    world.run()
    world.verify()


def long_walk(seed: int, num_steps: int) -> World:
    rng = random.Random(seed)
    windows = rng.choice([[0], [0, 5], [0, 3, 9], [6]])
    budget = rng.choice([3, 16, 64])
    config = SchedulerConfig(rng.choice([4, 8]), budget, CONTEXT, rng.choice([4, 64]))
    groups = groups_of(windows, rng.choice([2, 4]), budget, rng.randint(0, 12))
    world = World(config, groups, ahead=rng.randint(0, 2), drafts=rng.choice([0, 3]), seed=seed)
    world.check_every = 50
    for step in range(num_steps):
        chance = rng.random()
        if chance < 0.25 and len(world.scheduler.requests) < 12:
            prompt = rng.choice(PREFIXES)[: rng.randint(0, 24)] + [
                rng.randrange(VOCAB) for _ in range(rng.randint(1, 8))
            ]
            wanted = {
                "prompt": prompt,
                "max_tokens": rng.randint(1, CONTEXT - len(prompt)),
                "eos": frozenset(rng.sample(range(VOCAB), rng.choice([0, 2, 8]))),
                "seed": rng.randrange(5),
                "priority": rng.choice([0, 0, 1]),
                "tenant": rng.choice(TENANTS),
                "user": rng.choice([b"", b"another"]),
                "n": rng.choice([1, 1, 1, 3]),
                "prompt_logprobs": rng.choice([None] * 6 + [0]),
            }
            if rng.random() < 0.3:
                wanted["beams"] = beams(rng.choice([3, 4]), rng.choice(PENALTIES), rng.choice(STOPPING))
            add(world, f"r{step}", wanted)
        elif chance < 0.28 and world.scheduler.requests:
            world.abort(rng.choice(sorted(world.scheduler.requests)))
        else:
            world.step()
    world.run()
    world.verify()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_long_walk(seed: int) -> None:
    world = long_walk(seed, 1500)
    assert len(world.results) > 100
    assert world.scheduler.num_prefix_hits > 0


def test_walks_meet_preemption_and_copies() -> None:
    """The walks above prove nothing about what they never do."""
    config = SchedulerConfig(8, 16, CONTEXT, 64)
    world = World(config, [CacheGroup("full", 12, 4)])
    for index in range(6):
        world.add(request(f"r{index}", PREFIXES[0][: 5 + index], max_tokens=20, n=2, seed=index))
    world.run()
    world.verify()
    assert world.num_copies > 3
    assert world.scheduler.num_preemptions > 3


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("windows", [[0], [0, 5]])
def test_beams_that_are_preempted_come_back(windows: list[int], caching: bool) -> None:
    config = SchedulerConfig(8, 16, CONTEXT, 64, enable_prefix_caching=caching)
    world = World(config, [CacheGroup("window" if window else "full", 19, 4, window) for window in windows])
    for index in range(5):
        wanted = beams(3, 1.0, "never")
        world.add(request(f"b{index}", PREFIXES[0][: 5 + index], max_tokens=20, beams=wanted, n=3, eos=frozenset({7})))
        world.add(request(f"r{index}", PREFIXES[1][: 5 + index], max_tokens=20, seed=index))
    world.run()
    world.verify()
    assert world.scheduler.num_preemptions > 3 and world.num_gathered > 3

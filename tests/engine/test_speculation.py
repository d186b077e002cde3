"""How many tokens are drafted: what pays, and little where nothing does."""

from __future__ import annotations

import random

import pytest
from engine_world import VOCAB, World, request

from octavo.engine.request import Sequence
from octavo.engine.scheduler import CacheGroup, SchedulerConfig
from octavo.engine.speculation import PROBE, Speculation

PROMPT = random.Random(2).choices(range(VOCAB), k=30)


class Guesser:
    """Drafts what will be sampled, or what will not, as `right` says of the number of tokens that a sequence has."""

    def __init__(self, w: World) -> None:
        self.world = w
        self.right = lambda known: True
        self.told: dict[tuple[str, int], list[int]] = {}
        self.counts: list[tuple[int, int]] = []  # tokens of the sequence, drafts asked for

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        known = len(sequence.token_ids)
        self.counts.append((known, most))
        key = sequence.request.request_id, sequence.index
        if key not in self.told:
            self.told[key], _ = self.world.oracle.run(sequence.request, sequence.index)
        ahead = self.told[key][sequence.num_output_tokens :][:most]
        return ahead if self.right(known) else [(token + 1) % VOCAB for token in ahead]


def world(count: int, max_tokens: int, most: int = 8) -> tuple[World, Guesser]:
    w = World(SchedulerConfig(64, 512, 2000, 256), [CacheGroup("full", 4000, 16)])
    guesser = Guesser(w)
    w.scheduler.speculation = Speculation(guesser, most)
    for index in range(count):
        w.add(request(f"r{index}", [index % VOCAB, *PROMPT], max_tokens=max_tokens))
    return w, guesser


def finish(w: World) -> World:
    w.check_every = 1000
    w.run()
    w.verify()
    return w


def test_a_lone_sequence_whose_drafts_are_kept_takes_all_it_may() -> None:
    w, _ = world(1, 200)
    finish(w)
    assert w.num_steps < 200 / 7  # nine tokens a step, once it is known


def test_drafts_that_are_never_kept_stop_but_for_a_probe_now_and_then() -> None:
    w, guesser = world(1, 400)
    guesser.right = lambda known: False
    finish(w)
    late = [known for known, _ in guesser.counts if known > 100]
    assert all(count == 1 for known, count in guesser.counts if known > 100)
    assert 300 / PROBE - 1 < len(late) <= 330 / PROBE + 1
    assert w.scheduler.speculation.num_draft_tokens < 60


def test_a_text_that_can_be_drafted_again_is_drafted_again() -> None:
    w, guesser = world(1, 450)
    guesser.right = lambda known: known < 60 or known > 200
    finish(w)
    assert w.num_steps < 140 + 2 * PROBE + 200 / 7
    assert max(count for known, count in guesser.counts if known > 330) == 8


@pytest.mark.parametrize(("chance", "most_full"), [(0.5, 1), (0.9, 16), (0.99, 64)])
def test_the_fuller_the_step_the_surer_a_draft_must_be(chance: float, most_full: int) -> None:
    for count in (1, 16, 64):
        w, guesser = world(count, 100)
        w.scheduler.speculation.chance = chance
        w.step()
        w.step()
        # Probes are for a few of them only.
        assert (len(guesser.counts) > 2) is (1 < count <= most_full) or count == 1 == len(guesser.counts)


@pytest.mark.parametrize(("chance", "drafts"), [(0.5, False), (0.9, True)])
def test_a_drafter_that_costs_as_much_as_the_model_must_be_right(chance: float, drafts: bool) -> None:
    w, guesser = world(1, 100)
    w.scheduler.speculation.chance, w.scheduler.speculation.drafter_cost = chance, 1.0
    w.step()
    w.step()
    assert bool(guesser.counts) is drafts


def test_a_full_batch_that_cannot_be_drafted_computes_hardly_more_rows() -> None:
    w, guesser = world(64, 90)
    guesser.right = lambda known: False
    finish(w)
    assert w.scheduler.speculation.num_draft_tokens < 0.03 * 64 * 90
    assert w.num_steps <= 90 + 5
    asked = [known for known, _ in guesser.counts]
    assert max(map(asked.count, set(asked))) <= 2, "probes of sequences that go together fall on one step"


def test_a_step_full_of_prompts_has_no_room_for_guesses() -> None:
    w, guesser = world(1, 100)
    w.step()
    w.add(request("long", random.Random(5).choices(range(VOCAB), k=1500), max_tokens=2))
    for _ in range(2):
        w.step()
    assert not guesser.counts
    finish(w)
    assert guesser.counts

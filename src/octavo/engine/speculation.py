"""How many tokens to draft for each sequence, by how many of its drafts were kept and how full the step is."""

import logging

from octavo.engine.drafter import Drafter
from octavo.engine.request import Sequence, TokenOutput
from octavo.engine.scheduler_config import SchedulerConfig

logger = logging.getLogger(__name__)

# What reading the weights for a step costs, in rows of arithmetic. Measured for SmolLM2-135M (Q4_1) on two cores with
# AVX2: 3 to 4; more with int8 dot products and more cores, where some drafts that would pay are then not made.
FREE_ROWS = 4.0
FIRST_CHANCE = 0.9  # of a draft to be kept, before anything is known: a few wrong ones are soon made good
WEIGHT = 0.2  # of the newest draft in a sequence's chance
SHARED_WEIGHT = 0.02  # and in the one that new sequences start from
NEVER = -1.0  # the chance of drafts that must not be made
PROBE = 64  # where no draft pays, one is made every so many tokens of a sequence


class Speculation:
    """Drafts out of the rows and of half the tokens that a step leaves, as long as they pay, and judges them.

    A step of r rows costs `free_rows` + r, and one of a draft model its share of that. Each row yields a token, that of
    a draft only with the chance that it and all before it are kept; a draft pays where that chance is above what its
    cost yields in the rest of the step. So a lone sequence drafts on a slight chance, and a full batch on near
    certainty only. The chance is that of one token, weighted towards the newest drafts.
    """

    def __init__(
        self,
        drafter: Drafter | None = None,
        most: int = 0,
        *,
        free_rows: float = FREE_ROWS,
        drafter_cost: float = 0.0,
    ) -> None:
        """`most`: drafts of a sequence in a step; `drafter_cost`: a step of the drafter, as a share of the model's."""
        self.drafter = drafter
        self.most = most
        self.free_rows, self.drafter_cost = free_rows, drafter_cost
        self.chance = FIRST_CHANCE
        self.num_drafts = 0  # ranges that held drafted tokens
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def draft(self, running: list[Sequence], next_in: Sequence | None, config: SchedulerConfig) -> list[Sequence]:
        """Drafts for decoding sequences, oldest first, and returns those that got some; `next_in` is the one that waits
        for a place in the step.
        """
        drafted: list[Sequence] = []
        if self.drafter is None or not running:
            return drafted
        tokens, rows = 0, config.max_output_rows
        for sequence in running:
            tokens += len(sequence.token_ids) - sequence.num_computed_tokens
            rows -= sequence.num_samples
        if next_in is not None:
            rows -= next_in.num_samples
            tokens += len(next_in.token_ids) if len(running) < config.max_num_seqs else 0
        tokens = max(1, min(tokens, config.max_num_batched_tokens))
        room = min(rows, (config.max_num_batched_tokens - len(running)) // 2)
        # What the step yields and costs, with the drafts made so far.
        expected, cost = float(tokens), (self.free_rows + tokens) * (1.0 + self.drafter_cost)
        price = 1.0 + self.drafter_cost * (1.0 + self.free_rows / len(running))
        for sequence in running:
            if room < 1:
                break
            known = len(sequence.token_ids)
            chance = self.chance if sequence.draft_chance is None else sequence.draft_chance
            if chance < 0.0 or (chance * cost <= expected * price and (known + sequence.order[1]) % PROBE):
                continue
            behind = known - sequence.num_computed_tokens
            if behind != 1 or sequence.num_pending_samples or known == sequence.num_prompt_tokens:
                continue
            if sequence.search is not None:  # the tokens of beams are not sampled
                continue
            most = min(room, self.most, sequence.max_length - known - 1)  # the last token is not computed
            count = min(most, max(1, _most_that_pay(chance, price, expected, cost, most)))
            if count < 1:
                continue
            drafts = sequence.draft_token_ids = self._drafts(sequence, count)
            if drafts:
                drafted.append(sequence)
            room -= len(drafts)
            expected += sum(chance**place for place in range(1, len(drafts) + 1))
            cost += price * len(drafts)
        return drafted

    def _drafts(self, sequence: Sequence, count: int) -> list[int]:
        """At most `count` drafts of a sequence. A fault costs it its drafts, all there are to come, and no token."""
        assert self.drafter is not None
        try:
            drafts = self.drafter.draft(sequence, count)
            return drafts[: _num_allowed(sequence, drafts)]
        except Exception:
            logger.exception("Nothing more is drafted for request %s.", sequence.request.request_id)
            sequence.draft_chance = NEVER
            return []

    def judge(self, sequence: Sequence, count: int, samples: list[TokenOutput]) -> int:
        """How many of a sequence's `count` drafts, the first ones, are what was sampled; they are done with."""
        accepted = 0
        while accepted < count and sequence.draft_token_ids[accepted] == samples[accepted].token_id:
            accepted += 1
        sequence.draft_token_ids.clear()
        self.num_drafts += 1
        self.num_draft_tokens += count
        self.num_accepted_tokens += accepted
        chance = self.chance if sequence.draft_chance is None else sequence.draft_chance
        sequence.draft_chance = _weighted(chance, WEIGHT, accepted, count)
        self.chance = _weighted(self.chance, SHARED_WEIGHT, accepted, count)
        return accepted


def _num_allowed(sequence: Sequence, drafts: list[int]) -> int:
    """How many of a sequence's drafts, from the first on, its grammar allows: none of those that are not known yet."""
    if sequence.matcher is None:
        return len(drafts)
    # Before min_tokens a draft may lead to where only an end is allowed, which is banned as yet.
    early = len(sequence.token_ids) < sequence.min_length
    return 0 if early or -1 in drafts else sequence.matcher.count_allowed(drafts)


def _most_that_pay(chance: float, price: float, expected: float, cost: float, most: int) -> int:
    """How many drafts of one sequence raise what a step yields for its cost."""
    count, kept = 0, chance
    while count < most and kept * cost > expected * price:
        count, expected, cost, kept = count + 1, expected + kept, cost + price, kept * chance
    return count


def _weighted(chance: float, weight: float, accepted: int, count: int) -> float:
    """The chance after so many tokens were accepted, and one rejected where not all were."""
    chance = 1.0 - (1.0 - chance) * (1.0 - weight) ** accepted
    return chance if accepted == count else chance * (1.0 - weight)

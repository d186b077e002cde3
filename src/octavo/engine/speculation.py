"""How many tokens to draft for each sequence, by how many of its drafts were kept and how full the step is."""

from octavo.engine.drafter import Drafter
from octavo.engine.request import Sequence, TokenOutput
from octavo.engine.scheduler_config import SchedulerConfig

# What reading the weights for a step costs, in rows of arithmetic. Measured for SmolLM2-135M (Q4_1) on two cores with
# AVX2: 3 to 4; more with int8 dot products and more cores, where some drafts that would pay are then not made.
FREE_ROWS = 4.0
FIRST_CHANCE = 0.9  # of a draft to be kept, before anything is known: a few wrong ones are soon made good
WEIGHT = 0.2  # of the newest draft in a sequence's chance
SHARED_WEIGHT = 0.02  # and in the one that new sequences start from
PROBE = 64  # where no draft pays, one is made every so many tokens of a sequence


class Speculation:
    """Drafts out of the rows and of half the tokens that a step leaves, as long as they pay, and judges them.

    A step of r rows costs `free_rows` + r. Each row yields a token, a draft's only with the chance that it and all
    before it are kept; a draft pays where that chance is above what the cost of a row yields in the rest of the step.
    So a lone sequence drafts on a slight chance, and a full batch on near certainty only. The chance is that of one
    token, weighted towards the newest drafts.
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

    def draft(self, running: list[Sequence], next_in: Sequence | None, config: SchedulerConfig) -> None:
        """Drafts for decoding sequences, oldest first; `next_in` is the one that waits for a place in the step."""
        if self.drafter is None or not running:
            return
        rows = config.max_output_rows - sum(s.num_samples for s in running)
        tokens = sum(len(s.token_ids) - s.num_computed_tokens for s in running)
        if next_in is not None:
            rows -= next_in.num_samples
            tokens += len(next_in.token_ids) if len(running) < config.max_num_seqs else 0
        tokens = max(1, min(tokens, config.max_num_batched_tokens))
        room = min(rows, (config.max_num_batched_tokens - len(running)) // 2)
        # What the step yields and costs, with the drafts made so far.
        expected, cost = float(tokens), self.free_rows + tokens
        price = 1.0 + self.drafter_cost * (1.0 + self.free_rows / len(running))
        for sequence in running:
            if room < 1:
                return
            known = len(sequence.token_ids)
            if known - sequence.num_computed_tokens != 1 or sequence.num_pending_samples or not _is_drafted(sequence):
                continue
            most = min(room, self.most, sequence.max_length - known - 1)  # the last token is not computed
            chance = kept = self.chance if sequence.draft_chance is None else sequence.draft_chance
            count = 0
            while count < most and kept * cost > expected * price:
                count += 1
                expected, cost, kept = expected + kept, cost + price, kept * chance
            if count == 0 and most > 0 and (known + sequence.order[1]) % PROBE == 0:
                count = 1
            if count:
                sequence.draft_token_ids = self.drafter.draft(sequence, count)
                room -= len(sequence.draft_token_ids)

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


def _weighted(chance: float, weight: float, accepted: int, count: int) -> float:
    """The chance after so many tokens were accepted, and one rejected where not all were."""
    chance = 1.0 - (1.0 - chance) * (1.0 - weight) ** accepted
    return chance if accepted == count else chance * (1.0 - weight)


def _is_drafted(sequence: Sequence) -> bool:
    return len(sequence.token_ids) > sequence.num_prompt_tokens and sequence.search is None

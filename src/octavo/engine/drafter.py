"""Guesses of the tokens that a sequence will sample next, so that one step computes several positions of it.

A guess costs time and never a token: the random number of a position is keyed by (seed, sequence index, position), so
that a draft is kept exactly where it is what would have been sampled there without it.
"""

from array import array
from typing import Protocol

from octavo.engine.request import Sequence

MAX_CANDIDATES = 8  # earlier places of one n-gram that are compared


class Drafter(Protocol):
    def draft(self, sequence: Sequence, most: int) -> list[int]:
        """At most `most` tokens that may follow the last one of `sequence`, all of whose tokens are known."""
        ...


class NgramDrafter:
    """What followed the longest earlier occurrence of the last tokens of a sequence, the latest of equal ones.

    Prompt lookup decoding (Saxena, 2023). Each sequence has an index of its n-grams of the shortest length, which
    grows with it: a token costs one entry, a draft a walk over a few of them.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._longest, self._shortest = longest, shortest

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        tokens, shortest = sequence.token_ids, self._shortest
        if sequence.ngrams is None:
            sequence.ngrams = {}, array("i", [0] * shortest)
        # places[n-gram]: where its latest occurrence ends; earlier[place]: where the one before ends; 0: nowhere.
        places, earlier = sequence.ngrams
        for place in range(len(earlier), len(tokens)):
            ngram = tuple(tokens[place - shortest : place])
            earlier.append(places.get(ngram, 0))
            places[ngram] = place
        place, best, most_alike = places.get(tuple(tokens[-shortest:]), 0), 0, 0
        for _ in range(MAX_CANDIDATES):
            if not place or most_alike == self._longest:
                break
            alike = self._alike(tokens, place)
            if alike > most_alike:
                best, most_alike = place, alike
            place = earlier[place]
        return tokens[best : best + most] if best else []

    def _alike(self, tokens: list[int], place: int) -> int:
        """How many tokens before `place` equal the last ones, up to the longest that counts."""
        alike, end = self._shortest, len(tokens)
        while alike < min(self._longest, place) and tokens[place - alike - 1] == tokens[end - alike - 1]:
            alike += 1
        return alike


class RunnerDrafts:
    """Leaves the guesses to the runner, which has a draft model: -1 stands for each until the step is launched."""

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        return [-1] * most

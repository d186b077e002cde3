"""Which rows of the last step's arrays serve again in this one, and where."""

from collections.abc import Sequence

from octavo.engine.batch import ScheduledRange


def moved_rows(
    before: Sequence[ScheduledRange], now: Sequence[ScheduledRange]
) -> tuple[list[tuple[int, int]], list[int]]:
    """From the rows of the plain decodes `before` to those of `now`: copies (from, to) to make in this order, and the
    rows that are new. Sequences leave and others join, but keep their order.
    """
    first = 0
    for old, new in zip(before, now, strict=False):
        if old is not new:
            break
        first += 1
    places = {id(scheduled): place for place, scheduled in enumerate(before[first:], first)}
    moves, fresh = [], []
    for row, scheduled in enumerate(now[first:], first):
        place = places.get(id(scheduled), -1)
        if place < row:  # the copies before it may have written there
            fresh.append(row)
        elif place > row:
            moves.append((place, row))
    return moves, fresh

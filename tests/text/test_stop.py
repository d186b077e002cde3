"""Stop strings, against a definition that looks at the whole text at once."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.text.stop import StopMatcher

letters = st.text("ab", min_size=1, max_size=5)
stops = st.lists(letters, min_size=1, max_size=4)


def whole(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The first place where a stop string ends, and the longest one there."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(st.lists(st.text("abc", max_size=6), max_size=12), stops, st.booleans())
def test_pieces_equal_the_whole(pieces: list[str], stop: list[str], include: bool) -> None:
    matcher = StopMatcher(stop, include)
    text = "".join(matcher.feed(piece) for piece in pieces)
    if matcher.matched is None:
        text += matcher.flush()
    assert (text, matcher.matched) == whole("".join(pieces), stop, include)


@given(st.lists(st.text("abc", max_size=6), max_size=12), stops)
def test_no_more_is_held_than_could_become_a_stop_string(pieces: list[str], stop: list[str]) -> None:
    matcher, emitted, seen = StopMatcher(stop), "", ""
    for piece in pieces:
        emitted += matcher.feed(piece)
        seen += piece
        if matcher.matched is not None:
            break
        held = seen.removeprefix(emitted)
        assert seen == emitted + held
        assert not held or any(s.startswith(held) and s != held for s in stop)


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopMatcher(["DEF"])
    assert [matcher.feed(t) for t in ("AB", "CD", "EFG", "H")] == ["AB", "C", "", ""]
    assert matcher.matched == "DEF"
    assert matcher.flush() == ""


def test_a_match_that_may_not_end_yet_is_plain_text() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.feed("xab", may_match=False) == "xab"
    assert matcher.feed("a", may_match=False) == ""
    assert matcher.feed("b") == ""
    assert matcher.matched == "ab"

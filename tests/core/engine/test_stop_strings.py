from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.stop_strings import StopStringFilter


def run(pieces, stops, *, include=False, num_unsearched=0):
    """Shown pieces, and the stop string found."""
    stop_filter = StopStringFilter(stops, include_in_output=include)
    shown = []
    for index, piece in enumerate(pieces):
        shown.append(stop_filter.feed(piece, searched=index >= num_unsearched))
        if stop_filter.matched is not None:
            return shown, stop_filter.matched
    return [*shown, stop_filter.flush()], None


def test_text_that_may_become_a_stop_string_is_held_back():
    shown, matched = run([" ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"])
    assert ("".join(shown), matched) == (" ABC", "DEFGHIJ")


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xDEFGHIJ")])
def test_stop_in_the_middle_of_a_piece_cuts_there(include, text):
    shown, matched = run(["xDEFGHIJy"], ["DEFGHIJ"], include=include)
    assert ("".join(shown), matched) == (text, "DEFGHIJ")


def test_first_in_list_order_wins_within_one_piece():
    assert run(["a END b STOP"], ["STOP", "END"]) == (["a END b "], "STOP")
    assert run(["aSTOPPED"], ["STOPPED", "STOP"]) == (["a"], "STOPPED")


def test_shorter_of_two_wins_when_it_is_complete_first():
    shown, matched = run(["aSTO", "P", "PED"], ["STOPPED", "STOP"])
    assert ("".join(shown), matched) == ("a", "STOP")


@pytest.mark.parametrize("tail", ["", "😀 Hi"])
def test_near_misses_come_out_exactly_once(tail):
    pieces = [" Alice", "!", " Hi", " Ali", " Alic", "Alice", ";", tail]
    shown, matched = run(pieces, ["\n", "Alice:"])
    assert ("".join(shown), matched) == ("".join(pieces), None)


@pytest.mark.parametrize(("include", "text"), [(False, "a\nbc"), (True, "a\nbc\n")])
def test_stop_seen_before_min_tokens_is_passed_over(include, text):
    shown, matched = run(["a", "\n", "b", "c", "\n", "d"], ["\n"], include=include, num_unsearched=4)
    assert ("".join(shown), matched) == (text, "\n")


def test_stop_begun_before_min_tokens_counts_when_it_ends_after():
    shown, matched = run(["a", "ST", "OP", "b"], ["STOP"], num_unsearched=2)
    assert ("".join(shown), matched) == ("a", "STOP")


def test_nothing_is_held_when_stops_are_included():
    assert run(["ab", "cd"], ["xyz"], include=True) == (["ab", "cd", ""], None)


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_equals_a_search_of_the_whole_text_after_each_piece(pieces, stops, include):
    text, expected = "", None
    for piece in pieces:
        before, text = text, text + piece
        for stop in stops:
            start = text.find(stop, max(len(before) - len(stop) + 1, 0))
            if piece and start >= 0:
                expected = stop
                text = text[: start + len(stop)] if include else text[:start]
                break
        if expected:
            break
    shown, matched = run(pieces, stops, include=include)
    assert ("".join(shown), matched) == (text, expected)

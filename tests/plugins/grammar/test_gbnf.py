"""EBNF: both engines take the same language, also where one of them would split texts into lexemes too early."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.interfaces.grammar import EBNF, GrammarError
from slotwise_plugins.grammar.gbnf import parse_gbnf

ACCEPTED: list[tuple[str, list[str], list[str]]] = [
    (r'root ::= [^"\\]*', ["abc", "a\nb", ""], ['a"', "\\"]),
    (r"root ::= [\x00-\x1F]", ["\n"], ["a"]),
    (r'root ::= "\u00e9" "\x41" "\U0001F600"', ["éA😀"], ["A"]),
    ('root ::= "é" [à-ü]+ "😀"', ["éàü😀"], ["é😀"]),
    ('root ::= . "a"', ["ba", "\na", "éa"], ["a"]),
    ('# note\nroot ::= a-b | A\n a-b ::= "x" # hi\nA ::= "y"\n', ["x", "y"], ["z"]),
    ('root ::= "a"\n  | "b"\n  | "c"\n', ["a", "b", "c"], ["d"]),
    ('root ::= (\n "a"\n | "b"\n)+\n', ["aba"], [""]),
    ('root ::= ("a" "b"){2}', ["abab"], ["ab", "aabb"]),
    ('root ::= ("a" | "b"){2,3} "c"?', ["abc", "bb"], ["a", "abab"]),
    ('root ::= ("ab"*){2}', ["", "ab", "ababab"], ["a"]),
    ('root ::= ("a"{1,3}){1,2}', ["a", "aaaaaa"], ["aaaaaaa"]),
    ('root ::= "a"{,2} "b"{2,}', ["bb", "aabbb"], ["b", "aaabb"]),
    ('root ::= "a"{0} "b"', ["b"], ["ab"]),
    (r"root ::= [a\-z]+ [-b]", ["a-zb", "a-"], ["m"]),
    ("root ::= [\\]a]+", ["]a"], ["b"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= ( | "a") "b"', ["b", "ab"], ["a"]),
    (r'root ::= "\"" "\\" "/" "\n\t\r"', ['"\\/\n\t\r'], ['"']),
    ('root ::= start\nstart ::= "s"\nunused ::= unused "x"', ["s"], ["x"]),
    ('root ::= "a" root "b" | ""', ["", "ab", "aabb"], ["aab"]),
    ('root ::= root "+" root | [0-9]+', ["1", "1+22+3"], ["1+"]),
    ('root ::= "<end>" "%%" "//"', [], ["%%"]),
    # One lexeme is the beginning of another.
    ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab"]),
    ('root ::= x "b" | "q"\nx ::= [a-z]+', ["ab", "aab", "q"], ["b"]),
    ('root ::= "a"* "(" root ")" | "aab"', ["aab", "aa(aab)"], ["aa()"]),
    ('root ::= "if" " "+ id | id " "+ root\nid ::= [a-z]+', ["if x", "ifx y if z"], ["ifx"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), ACCEPTED)
def test_accepts_exactly_what_the_grammar_says(engine: Any, text: str, good: list[str], bad: list[str]) -> None:
    grammar = engine.compile(EBNF, text)
    assert [output for output in good if not engine.takes(grammar, output)] == []
    assert [output for output in bad if engine.takes(grammar, output)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rule 'root'"),
        ('x ::= "a"', "no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' is defined twice"),
        ('root ::= "a"\n  nothing', "line 2: the rule 'nothing' is not defined"),
        ("root ::= ", "line 1: the rule 'root' says nothing"),
        ('root = "a"', "expected `name ::=`, found 'root'"),
        ('"a"', "expected `name ::=`"),
        ('root ::= "a', "unexpected"),
        ('root ::= ("a"', "never closed"),
        ('root ::= "a")', "expected `name ::=`"),
        ("root ::= [z-a]", "wrong way round"),
        ("root ::= []", "is empty"),
        ('root ::= "a"{3,1}', "no range of counts"),
        ('root ::= "a"{}', "no range of counts"),
        ('root ::= "a"+?', "stands where"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\ud800"', "no character"),
        (r'root ::= "\UFFFFFFFF"', "no character"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper than 100"),
        ("root ::= " + "\n".join(f'x{index} ::= "a"' for index in range(3000)), "line 1: the rule 'root' says nothing"),
        ('root ::= "a"\n' + "\n".join(f'x{index} ::= "a"' for index in range(3000)), "more than 2000 rules"),
    ],
)
def test_broken_texts_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_gbnf(text)
    assert message in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ro t:="\\x{[(|)]}.*+?,1#\n-^aé', max_size=40))
def test_any_text_is_a_grammar_or_refused(text: str) -> None:
    try:
        found = set(parse_gbnf("root ::= " + text))
    except GrammarError as error:
        found = {"root"} if str(error) else set()
    assert "root" in found


@pytest.mark.parametrize(
    "text",
    [
        "root ::= r0\n" + "".join(f'r{index} ::= r{index + 1} "a"\n' for index in range(1500)) + 'r1500 ::= "b"\n',
        "root ::= r0\n" + "".join(f'r{index} ::= r{index + 1} "a" | root\n' for index in range(1500)) + 'r1500 ::= "b"\n',
        "root ::= r0\n" + "".join(f"r{index} ::= r{index + 1} r{index + 1}\n" for index in range(40)) + 'r40 ::= "b"\n',
        'root ::= ("a"{1,1000}){1,1000} | "x"{1,100000000}',
        "root ::= " + "(" * 100 + '"a"' + ")*" * 100,
        'root ::= x root | "a"\nx ::= "" | "b"\n',
    ],
)
def test_costly_grammars_are_compiled_or_refused(engine: Any, text: str) -> None:
    grammar = engine.compile_or_refuse(EBNF, text)
    assert grammar if isinstance(grammar, str) else engine.allowed(grammar.matcher())

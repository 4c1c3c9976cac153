"""`llguidance`: grammars as derivatives of expressions and an Earley parser, in Rust.

It refuses the keywords of JSON Schema that it does not implement. Where only one text can follow, it would allow only the tokens that its
own tokenizer makes of that text, special ones among them; it is told not to. What this file does not know: requests, batches, which ids
end them.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from slotwise.interfaces.grammar import (
    BITS_PER_WORD,
    CHOICE,
    EBNF,
    JSON_OBJECT,
    JSON_SCHEMA,
    REGEX,
    CompiledGrammar,
    GrammarBackend,
    GrammarError,
    GrammarMatcher,
    GrammarSetup,
    GrammarSpec,
)
from slotwise_plugins.grammar.deep_stack import on_deep_stack
from slotwise_plugins.grammar.gbnf import parse_gbnf
from slotwise_plugins.grammar.gbnf_spellings import lark_of
from slotwise_plugins.grammar.llguidance_numbers import with_exact_numbers
from slotwise_plugins.grammar.options import LLGUIDANCE, GrammarOptions
from slotwise_plugins.grammar.texts import check_expression, check_size, choices, parsed, refuse_dead_end, schema_of, structures

_DEAD_ENDS = ("NoExtension", "NoExtensionBias")
_LISTING = re.compile(r"\s*\d+ \| ")
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_HEADER = '%llguidance {"no_forcing": true}\n'
_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000, step_max_items=200_000, verbose_errors=False)
"""Above the library's own, which 500 optional properties of one object reach; a mask may so take 70 ms at worst."""
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


class LlguidanceBackend(GrammarBackend):
    """All kinds."""

    capabilities = LLGUIDANCE

    def __init__(self, setup: GrammarSetup) -> None:
        """Raises GrammarError for a tokenizer that is not a fast one, or that the library cannot read."""
        super().__init__(setup)
        if not isinstance(setup.tokenizer, PreTrainedTokenizerFast):
            raise GrammarError(f"llguidance needs a fast tokenizer (tokenizer.json), this model has a {type(setup.tokenizer).__name__}")
        self._options = setup.options if isinstance(setup.options, GrammarOptions) else GrammarOptions()
        num_ids = max(setup.vocab_size, max(setup.tokenizer.get_vocab().values()) + 1, setup.end_token_id + 1)
        try:
            self._tokenizer = llguidance.hf.from_tokenizer(setup.tokenizer, n_vocab=num_ids, eos_token=setup.end_token_id)
        except ValueError as error:
            raise GrammarError(f"llguidance cannot read this model's tokenizer: {error}") from error

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        num_bytes = check_size(spec, self._options.max_text_bytes)
        return on_deep_stack(lambda: self._compiled(spec), num_bytes)

    def _compiled(self, spec: GrammarSpec) -> CompiledGrammar:
        try:
            grammar = _HEADER + self._lark(spec)
        except GrammarError:
            raise
        except (ValueError, RecursionError) as error:
            raise GrammarError(str(error) or type(error).__name__) from error
        fault = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer, limits=_LIMITS)
        if fault:
            raise GrammarError(_without_listing(fault))
        compiled = LlguidanceGrammar(llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS), self.setup)
        refuse_dead_end(compiled, self.setup.vocab_size)
        return compiled

    def _lark(self, spec: GrammarSpec) -> str:
        """In the library's dialect of Lark, without the header."""
        if spec.kind in (JSON_SCHEMA, JSON_OBJECT):
            return f"start: %json {self._schema({'type': 'object'} if spec.kind == JSON_OBJECT else parsed(spec.text), spec)}"
        if spec.kind == REGEX:
            check_expression(spec.text)
            (wrapped,) = json.loads(llguidance.LLMatcher.grammar_from_regex(spec.text))["grammars"]
            return str(wrapped["lark_grammar"])
        if spec.kind == EBNF:
            return lark_of(parse_gbnf(spec.text))
        if spec.kind == CHOICE:
            return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in choices(spec.text))
        tags = [
            llguidance.StructTag(trigger=item.trigger, begin=item.begin, grammar=self._schema(item.schema, spec), end=item.end)
            for item in structures(spec.text)
        ]
        _, _, grammar = llguidance.StructTag.to_grammar(tags, assume_special=False).partition("\n")
        return grammar

    def _schema(self, schema: Any, spec: GrammarSpec) -> str:
        """As JSON, with our options for whitespace instead of any that it brings."""
        return json.dumps({**with_exact_numbers(schema_of(schema)), "x-guidance": self._whitespace(spec)})

    def _whitespace(self, spec: GrammarSpec) -> Any:
        if not spec.any_whitespace:
            return dict(_COMPACT)
        most = self._options.max_whitespace
        return {"whitespace_flexible": True} if most is None else {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{most}}}"}


def _without_listing(message: str) -> str:
    """Without the lines of the library's own grammar, and the place in it, `at 2(8): `."""
    lines = itertools.takewhile(lambda line: not _LISTING.match(line), message.splitlines())
    return _PLACE.sub("", "\n".join(lines)).strip() or message


class LlguidanceGrammar(CompiledGrammar):
    """A matcher at the start, to be copied."""

    def __init__(self, start: llguidance.LLMatcher, setup: GrammarSetup) -> None:
        self._start = start
        self._setup = setup

    def matcher(self) -> GrammarMatcher:
        return LlguidanceMatcher(self._start.deep_copy(), self._setup)


class LlguidanceMatcher(GrammarMatcher):
    """The end id is kept here: the library's matcher never sees it."""

    def __init__(self, matcher: llguidance.LLMatcher, setup: GrammarSetup) -> None:
        self._matcher = matcher
        self._end_token_id = setup.end_token_id
        self._vocab_size = setup.vocab_size
        self._is_ended = False

    def fill_mask(self, mask: torch.Tensor) -> None:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        self._check()
        num_words = len(mask)
        ours = mask.numpy().view(np.uint32)
        ours[: len(words)] = words[:num_words]
        ours[len(words) :] = 0
        if spare := num_words * BITS_PER_WORD - self._vocab_size:
            ours[-1] &= np.uint32(0xFFFFFFFF >> spare)
        word, bit = divmod(self._end_token_id, BITS_PER_WORD)
        ours[word] &= ~np.uint32(1 << bit)
        if self._matcher.is_accepting():
            ours[word] |= np.uint32(1 << bit)

    def accept(self, token_id: int) -> bool:
        if token_id == self._end_token_id:
            self._is_ended = self._matcher.is_accepting()
            return self._is_ended
        if self._matcher.is_stopped() or not 0 <= token_id < self._vocab_size:
            return False
        accepted = self._matcher.try_consume_tokens([token_id]) == 1
        self._check()
        return accepted

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._is_ended:
            self._is_ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise GrammarError("no output fulfils the grammar" if reason in _DEAD_ENDS else f"the grammar cannot go on: {reason}")

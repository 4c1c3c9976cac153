"""`xgrammar`: grammars as pushdown automata with token masks made beforehand, in C++.

What it would silently ignore of a JSON schema is refused (`xgrammar_limits`). What this file does not know: requests, batches, which ids
end them.
"""

from __future__ import annotations

import json

import torch
import xgrammar

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
from slotwise_plugins.grammar.gbnf_spellings import xgrammar_of, xgrammar_text
from slotwise_plugins.grammar.options import XGRAMMAR, GrammarOptions
from slotwise_plugins.grammar.texts import Structure, check_expression, check_size, choices, parsed, refuse_dead_end, schema_of, structures
from slotwise_plugins.grammar.xgrammar_expressions import checked_expression
from slotwise_plugins.grammar.xgrammar_limits import refuse_ignored


class XgrammarBackend(GrammarBackend):
    """All kinds."""

    capabilities = XGRAMMAR

    def __init__(self, setup: GrammarSetup) -> None:
        """Raises GrammarError for a tokenizer that the library cannot read."""
        super().__init__(setup)
        self._options = setup.options if isinstance(setup.options, GrammarOptions) else GrammarOptions()
        try:
            info = _tokenizer_info(setup)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"xgrammar cannot read this model's tokenizer: {error}") from error
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        num_bytes = check_size(spec, self._options.max_text_bytes)
        return on_deep_stack(lambda: self._compiled(spec), num_bytes)

    def _compiled(self, spec: GrammarSpec) -> CompiledGrammar:
        try:
            compiled = XgrammarGrammar(self._compile(spec), self.setup)
        except GrammarError:
            raise
        except (RuntimeError, ValueError, RecursionError, xgrammar.InvalidJSONError, xgrammar.InvalidStructuralTagError) as error:
            raise GrammarError(_without_place(str(error)) or f"xgrammar refuses this {spec.kind} without a reason") from error
        refuse_dead_end(compiled, self.setup.vocab_size)
        return compiled

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        compiler = self._compiler
        if spec.kind in (JSON_SCHEMA, JSON_OBJECT):
            schema = {"type": "object"} if spec.kind == JSON_OBJECT else schema_of(parsed(spec.text))
            refuse_ignored(schema)
            if spec.any_whitespace:
                return compiler.compile_json_schema(
                    json.dumps(schema), strict_mode=False, any_whitespace=True, max_whitespace_cnt=self._options.max_whitespace
                )
            return compiler.compile_json_schema(json.dumps(schema), strict_mode=False, any_whitespace=False, separators=(",", ":"))
        if spec.kind == REGEX:
            check_expression(spec.text)
            return compiler.compile_regex(checked_expression(spec.text))
        if spec.kind == EBNF:
            return compiler.compile_grammar(xgrammar_of(parse_gbnf(spec.text)))
        if spec.kind == CHOICE:
            return compiler.compile_grammar("root ::= " + " | ".join(map(xgrammar_text, choices(spec.text))))
        if not spec.any_whitespace:
            raise GrammarError('xgrammar cannot forbid whitespace within structural tags; allow it, or use grammar.use = "llguidance"')
        return compiler.compile_structural_tag(_structural_tag(structures(spec.text), self._options.max_whitespace))


def _tokenizer_info(setup: GrammarSetup) -> xgrammar.TokenizerInfo:
    """The bytes of each token; those with a special meaning have none, so that no grammar takes them for text. Names in <> that were added
    to the tokenizer count as special, as llguidance has it."""
    stops = [setup.end_token_id]
    read = xgrammar.TokenizerInfo.from_huggingface(setup.tokenizer, vocab_size=setup.vocab_size, stop_token_ids=stops)
    added = setup.tokenizer.added_tokens_decoder.items()
    special = {token_id for token_id, token in added if token.special or (token.content[:1], token.content[-1:]) == ("<", ">")}
    special.update(setup.tokenizer.all_special_ids)
    tokens = [b"" if token_id in special else token for token_id, token in enumerate(read.decoded_vocab)]
    return xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=setup.vocab_size, stop_token_ids=stops)


def _structural_tag(found: list[Structure], max_whitespace: int | None) -> str:
    tags = []
    for item in found:
        refuse_ignored(item.schema)
        content = {"type": "json_schema", "json_schema": item.schema, "max_whitespace_cnt": max_whitespace}
        tags.append({"begin": item.begin, "content": content, "end": item.end})
    triggers = list(dict.fromkeys(item.trigger for item in found))
    return json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}})


def _without_place(message: str) -> str:
    """Without the place in the library's sources that its messages begin with, `[12:02:24] /project/cpp/x.cc:94: `."""
    head, separator, rest = message.partition(": ")
    return (rest if separator and head.startswith("[") and ".cc:" in head else message).strip()


class XgrammarGrammar(CompiledGrammar):
    """Shared by matchers."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, setup: GrammarSetup) -> None:
        self._compiled = compiled
        self._setup = setup

    def matcher(self) -> GrammarMatcher:
        return XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._setup)


class XgrammarMatcher(GrammarMatcher):
    """One output."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, setup: GrammarSetup) -> None:
        self._matcher = matcher
        self._vocab_size = setup.vocab_size

    def fill_mask(self, mask: torch.Tensor) -> None:
        self._matcher.fill_next_token_bitmask(mask.unsqueeze(0))
        if spare := len(mask) * BITS_PER_WORD - self._vocab_size:
            mask.view(torch.int32)[-1] &= (1 << (BITS_PER_WORD - spare)) - 1

    def accept(self, token_id: int) -> bool:
        return 0 <= token_id < self._vocab_size and bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    @property
    def is_ended(self) -> bool:
        return bool(self._matcher.is_terminated())

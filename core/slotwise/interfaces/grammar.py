"""The `grammar` slot: structured output. A grammar says which tokens may come next; the engine masks all others.

A backend compiles texts into grammars, off the thread that steps the engine; each request then has a matcher of its own. What ends a
request is the engine's business: a backend knows one end id, which stands for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from transformers import PreTrainedTokenizerBase

JSON_SCHEMA = "json_schema"
"""JSON that fulfils a schema."""
JSON_OBJECT = "json_object"
"""Any JSON object."""
REGEX = "regex"
"""Text that a regular expression matches wholly."""
EBNF = "ebnf"
"""Text of a context-free grammar."""
CHOICE = "choice"
"""One of a few texts."""
STRUCTURAL_TAG = "structural_tag"
"""Free text in which certain marks open a structure."""
GRAMMAR_KINDS = (JSON_SCHEMA, JSON_OBJECT, REGEX, EBNF, CHOICE, STRUCTURAL_TAG)
"""What a `GrammarSpec` can be."""
BITS_PER_WORD = 32
"""Ids per word of a mask: id i is bit i % 32 of word i // 32, 1 = allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrammarCapabilities:
    """What a grammar backend claims."""

    kinds: tuple[str, ...] = GRAMMAR_KINDS
    """Of `GRAMMAR_KINDS`."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrammarSetup:
    """What a grammar backend is made for."""

    tokenizer: PreTrainedTokenizerBase
    """Of the model; read only."""
    vocab_size: int
    """Columns of the logits; may be more than the tokenizer has."""
    end_token_id: int
    """The id that ends an output, standing for all that do."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrammarSpec:
    """What a request asks for. Equal specs have equal grammars."""

    kind: str
    """One of `GRAMMAR_KINDS`."""
    text: str
    """JSON_SCHEMA: the schema as JSON. REGEX: the expression, which the whole output must match. EBNF: a grammar whose start rule is
    `root`, `name ::= ...` (GBNF). CHOICE: a JSON list of strings, one of which is the output. STRUCTURAL_TAG: JSON in the format of
    `StructuredOutputsParams.structural_tag`. JSON_OBJECT: empty."""
    any_whitespace: bool = True
    """JSON kinds: whether blanks and newlines may stand between tokens of the JSON; False = compact, as `json.dumps` writes it with
    separators ("," and ":", each perhaps followed by one blank)."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or becomes too costly on the way; its text is the compiler's message, without a stack."""


class GrammarMatcher(ABC):
    """How far one request's output is within a grammar. Its methods may raise GrammarError, which ends the request."""

    @abstractmethod
    def fill_mask(self, mask: torch.Tensor) -> None:
        """mask: [ceil(vocab_size / 32)] int32, CPU, all of it to be written: the ids that may come next. The end id is among them iff the
        output may end here; ids without a token are not. Of ids with the same bytes some may be left out."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Go on by one token. False, and no change, if it may not come next. Not called after the end id was accepted."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, as many as were accepted since the matcher was made at most."""

    @property
    @abstractmethod
    def is_ended(self) -> bool:
        """The end id was accepted."""


class CompiledGrammar(ABC):
    """Immutable; shared by requests and threads."""

    @abstractmethod
    def matcher(self) -> GrammarMatcher:
        """A matcher at the start. Called on the engine's thread; cheap."""


class GrammarBackend(ABC):
    """Base of grammar backends. One instance per engine; its methods are called from several threads at once."""

    capabilities = GrammarCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: GrammarSetup) -> None:
        self.setup = setup

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Called on threads made for it; may take seconds. Raises GrammarError for a text that is no grammar, or one beyond its limits."""


def longest_valid_prefix(matcher: GrammarMatcher, token_ids: Sequence[int]) -> int:
    """How many of the tokens the grammar takes, one after the other; the matcher is left as it was."""
    count = 0
    for token_id in token_ids:
        if matcher.is_ended or not matcher.accept(token_id):
            break
        count += 1
    matcher.rollback(count)
    return count

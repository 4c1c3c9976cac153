"""Structured output in the core: grammars are compiled on threads of their own, masks are made while the forward runs.

    request with a grammar -> add: compile, or find it compiled   the request is set aside meanwhile (WAITING_FOR_GRAMMAR)
      -> take_compiled     it may run, or it ends with the compiler's words
      -> begin_masks       what may come next, per step; after each of its drafts as well
      -> advance           the step's tokens are taken in, drafts that the grammar refuses are dropped

Every id that ends a request is allowed exactly where its grammar may end. What this file does not know: the grammar engine, how a mask is
applied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from slotwise.engine.grammar_compiler import GrammarCompiler
from slotwise.engine.grammar_masks import GrammarMasks
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.grammar import BITS_PER_WORD, CompiledGrammar, GrammarMatcher, GrammarSpec, longest_valid_prefix

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndIds:
    """The ids that end one request, of which grammar engines know only one."""

    known: int
    """The one that stands for all."""
    all: frozenset[int]

    def spread(self, mask: torch.Tensor) -> None:
        """Allow all of them where the known one is allowed, none elsewhere. mask: [num_words] int32."""
        words = mask.numpy().view(np.uint32)
        word, bit = divmod(self.known, BITS_PER_WORD)
        may_end = bool(words[word] >> np.uint32(bit) & np.uint32(1))
        for token_id in (self.known, *self.all):
            word, bit = divmod(token_id, BITS_PER_WORD)
            words[word] &= ~np.uint32(1 << bit)
        for token_id in self.all if may_end else ():
            word, bit = divmod(token_id, BITS_PER_WORD)
            words[word] |= np.uint32(1 << bit)


class RequestGrammar:
    """How far one request is in its grammar."""

    def __init__(self, matcher: GrammarMatcher, ends: EndIds) -> None:
        self._matcher = matcher
        self._ends = ends
        self.failure: str | None = None
        """Why the grammar cannot go on."""

    def masks(self, drafts: Sequence[int], num_words: int) -> torch.Tensor:
        """[1 + number of drafts, num_words] int32; rows behind an end, or behind a draft that the grammar refuses, allow everything. So do
        those of a grammar that fails, which ends its request and no other."""
        masks = torch.full((len(drafts) + 1, num_words), -1, dtype=torch.int32)
        try:
            self._fill(masks, drafts)
        except Exception as error:
            _logger.exception("a grammar failed; only its request ends")
            self.failure = f"structured_outputs: {error or type(error).__name__}"
            masks.fill_(-1)
        return masks

    def _fill(self, masks: torch.Tensor, drafts: Sequence[int]) -> None:
        num_accepted = 0
        for place in range(len(drafts) + 1):
            if self._matcher.is_ended:
                break
            self._matcher.fill_mask(masks[place])
            self._ends.spread(masks[place])
            if place == len(drafts) or not self._accept(drafts[place]):
                break
            num_accepted += 1
        self._matcher.rollback(num_accepted)

    def accept(self, token_ids: Sequence[int]) -> str | None:
        """Take in tokens that were sampled; what is wrong with them, or with the grammar, if anything is."""
        if self.failure is not None:
            return self.failure
        for token_id in token_ids:
            if self._matcher.is_ended:
                return None  # a step that was under way when the request ended
            if not self._accept(token_id):
                return f"token {token_id} was sampled, but the grammar does not allow it; the request ends here"
        return None

    def valid_prefix(self, drafts: Sequence[int]) -> int:
        """How many of the drafts the grammar takes."""
        return longest_valid_prefix(self._matcher, [self._known(token_id) for token_id in drafts])

    def _accept(self, token_id: int) -> bool:
        return self._matcher.accept(self._known(token_id))

    def _known(self, token_id: int) -> int:
        return self._ends.known if token_id in self._ends.all else token_id


class StructuredOutputs:
    """The grammars of an engine's requests. `begin_masks` and `advance` are called where steps run, the rest where they are scheduled."""

    def __init__(self, compiler: GrammarCompiler, *, vocab_size: int, end_token_id: int) -> None:
        self._compiler = compiler
        self._num_words = -(-vocab_size // BITS_PER_WORD)
        self._end_token_id = end_token_id
        self._grammars: dict[str, RequestGrammar] = {}
        self._compiling: dict[str, tuple[Future[CompiledGrammar], EndIds]] = {}
        self._mask_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotwise-grammar-mask")
        self._news = threading.Event()

    @property
    def is_compiling(self) -> bool:
        """Some request waits for its grammar."""
        return bool(self._compiling)

    def add(self, request_id: str, spec: GrammarSpec, stop_token_ids: frozenset[int]) -> None:
        """A request that must not run before `take_compiled` names it."""
        ends = EndIds(known=self._end_token_id, all=stop_token_ids or frozenset({self._end_token_id}))
        future = self._compiler.submit(spec)
        self._compiling[request_id] = (future, ends)
        future.add_done_callback(lambda _: self._news.set())

    def wait(self) -> None:
        """Until some compilation is over; for a core that has nothing else to do. Returns at once if nothing is compiled."""
        if self._compiling and not any(future.done() for future, _ in self._compiling.values()):
            self._news.wait(timeout=self._compiler.poll_seconds)
        self._news.clear()

    def take_compiled(self) -> list[tuple[str, str | None]]:
        """(request id, error) of the requests that wait no longer; error None = it may run."""
        self._compiler.expire()
        over = [(request_id, *entry) for request_id, entry in list(self._compiling.items()) if entry[0].done()]
        found: list[tuple[str, str | None]] = []
        for request_id, future, ends in over:
            self._compiling.pop(request_id, None)
            error = future.exception()
            if error is None:
                self._grammars[request_id] = RequestGrammar(future.result().matcher(), ends)
            found.append((request_id, None if error is None else f"structured_outputs: {error}"))
        return found

    def begin_masks(self, scheduled: SchedulerOutput) -> Future[GrammarMasks] | None:
        """Start on the masks of a step; None if it needs none."""
        self.forget(scheduled.finished_request_ids)
        drafts = scheduled.scheduled_spec_decode_tokens
        wanted = [(request_id, drafts.get(request_id, ())) for request_id in scheduled.num_scheduled_tokens if request_id in self._grammars]
        return self._mask_thread.submit(self._masks, wanted) if wanted else None

    def _masks(self, wanted: Sequence[tuple[str, Sequence[int]]]) -> GrammarMasks:
        return {request_id: self._grammars[request_id].masks(drafts, self._num_words) for request_id, drafts in wanted}

    def advance(self, computed: ModelRunnerOutput) -> None:
        """Take in a step's tokens. A token that its grammar refuses becomes the request's error; refused drafts are cut off."""
        if not self._grammars:
            return
        for request_id, token_ids in zip(computed.request_ids, computed.sampled_token_ids, strict=True):
            grammar = self._grammars.get(request_id)
            if grammar is None:
                continue
            try:
                error = grammar.accept(token_ids)
                drafts = computed.draft_token_ids.get(request_id)
                if drafts and error is None:
                    computed.draft_token_ids[request_id] = drafts[: grammar.valid_prefix(drafts)]
            except Exception as failure:
                _logger.exception("request %s: its grammar failed; only this request ends", request_id)
                error = f"structured_outputs: {failure or type(failure).__name__}"
            if error is not None:
                computed.errors.setdefault(request_id, error)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Ended requests."""
        for request_id in request_ids:
            self._grammars.pop(request_id, None)
            self._compiling.pop(request_id, None)

    def close(self) -> None:
        """No step follows."""
        self._mask_thread.shutdown()
        self._compiling.clear()

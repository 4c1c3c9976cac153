"""What stands around the sampler: logits processors, grammars, and what they say of a request before it is accepted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slotwise.engine.grammar_compiler import GrammarCompiler
from slotwise.engine.input_processor import ExtraChecks
from slotwise.engine.logits_processors import LogitsProcessors
from slotwise.engine.plan import EnginePlan, ModelPlan
from slotwise.engine.structured_outputs import StructuredOutputs
from slotwise.errors import InvalidRequestError
from slotwise.interfaces.grammar import GrammarBackend, GrammarSetup
from slotwise.interfaces.logits_processor import LogitsProcessor, LogitsProcessorSetup
from slotwise.interfaces.sampler import GREEDY_EPS, SamplerCapabilities
from slotwise.plugin.suggestions import did_you_mean
from slotwise.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def processor_setups(
    plan: EnginePlan, model_plan: ModelPlan, tokenizer: PreTrainedTokenizerBase | None
) -> list[tuple[type[LogitsProcessor], LogitsProcessorSetup]]:
    """Class and setup of each logits processor, in the order the configuration names them."""
    encode = None if tokenizer is None else partial(_encode, tokenizer)
    return [
        (
            chosen.implementation(),
            LogitsProcessorSetup(
                vocab_size=model_plan.description.vocab_size,
                max_num_reqs=plan.config.scheduler.max_num_seqs,
                device=plan.machine.device,
                encode=encode,
                options=chosen.options,
            ),
        )
        for chosen in plan.logits_processors.values()
    ]


def build_processors(setups: list[tuple[type[LogitsProcessor], LogitsProcessorSetup]]) -> LogitsProcessors:
    return LogitsProcessors([implementation(setup) for implementation, setup in setups])


def build_grammars(plan: EnginePlan, model_plan: ModelPlan, tokenizer: PreTrainedTokenizerBase | None) -> StructuredOutputs | None:
    """None where there is no grammar engine, or nothing for it to work with."""
    chosen, end_token_id = plan.components.get("grammar"), _end_token_id(model_plan, tokenizer)
    if chosen is None or tokenizer is None or end_token_id is None:
        return None
    vocab_size = model_plan.description.vocab_size
    setup = GrammarSetup(tokenizer=tokenizer, vocab_size=vocab_size, end_token_id=end_token_id, options=chosen.options)

    def backend() -> GrammarBackend:
        made: GrammarBackend = chosen.implementation()(setup)
        return made

    config = plan.config.grammar
    compiler = GrammarCompiler(backend, num_threads=config.num_threads, max_seconds=config.max_compile_seconds)
    return StructuredOutputs(compiler, vocab_size=vocab_size, end_token_id=end_token_id)


def request_checks(
    plan: EnginePlan, setups: list[tuple[type[LogitsProcessor], LogitsProcessorSetup]], *, has_grammars: bool
) -> ExtraChecks:
    """What the chosen components cannot serve."""
    known_args = sorted({name for implementation, _ in setups for name in implementation.capabilities.extra_args})
    sampler, grammar = plan.components["sampler"], plan.components.get("grammar")
    sampler_claims: SamplerCapabilities = sampler.loaded.component.capabilities
    kinds = () if grammar is None else grammar.loaded.component.capabilities.kinds

    def check(params: SamplingParams) -> None:
        for implementation, setup in setups:
            implementation.check(params, setup)
        for name in params.extra_args or ():
            if name not in known_args:
                raise InvalidRequestError(
                    f'extra_args has "{name}", which no logits processor of this engine reads.{did_you_mean(name, known_args)}'
                    f" Known: {', '.join(known_args) or 'none'}.",
                    param="extra_args",
                )
        if params.seed is not None and params.temperature >= GREEDY_EPS and not sampler_claims.per_request_seeds:
            raise InvalidRequestError(
                f"seed is given, but the sampler {sampler.name} of this engine has no seeds of requests; leave it out.", param="seed"
            )
        if params.structured_outputs is not None:
            _check_grammar(params.structured_outputs.spec().kind, kinds, has_grammars)

    return check


def _check_grammar(kind: str, kinds: tuple[str, ...], has_grammars: bool) -> None:
    if not has_grammars:
        raise InvalidRequestError(
            "structured_outputs needs a grammar engine (grammar.use), a tokenizer and an end-of-sequence token; this engine lacks one.",
            param="structured_outputs",
        )
    if kind not in kinds:
        raise InvalidRequestError(
            f"structured_outputs asks for {kind}, but this engine's grammar component serves only {', '.join(kinds)}.",
            param="structured_outputs",
        )


def _end_token_id(model_plan: ModelPlan, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The id that stands for all that end an output: the tokenizer's own, if the model has it."""
    ids = model_plan.source.eos_token_ids
    own = None if tokenizer is None else tokenizer.eos_token_id
    return own if isinstance(own, int) and own in ids else min(ids, default=None)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))

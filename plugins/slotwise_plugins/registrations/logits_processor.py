"""The built-in logits processors. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_samplers import capabilities
from slotwise_samplers.processors.thinking_options import ThinkingBudgetOptions


class AllowedTokenIds:
    """`allowed_token_ids`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="allowed_token_ids",
            implementation="slotwise_samplers.processors.allowed_token_ids:AllowedTokenIds",
            api=">=1.0,<2",
            summary="Forbids all ids but the request's.",
            capabilities=capabilities.ALLOWED_TOKEN_IDS,
        )


class BadWords:
    """`bad_words`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="bad_words",
            implementation="slotwise_samplers.processors.bad_words:BadWords",
            api=">=1.0,<2",
            summary="Bans the last token of a forbidden sequence.",
            capabilities=capabilities.BAD_WORDS,
        )


class MinTokens:
    """`min_tokens`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="min_tokens",
            implementation="slotwise_samplers.processors.min_tokens:MinTokens",
            api=">=1.0,<2",
            summary="Bans end and stop ids while an output is shorter.",
            capabilities=capabilities.MIN_TOKENS,
        )


class LogitBias:
    """`logit_bias`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="logit_bias",
            implementation="slotwise_samplers.processors.logit_bias:LogitBias",
            api=">=1.0,<2",
            summary="Adds a number to the logits of chosen ids.",
            capabilities=capabilities.LOGIT_BIAS,
        )


class ThinkingBudget:
    """`thinking_budget`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="thinking_budget",
            implementation="slotwise_samplers.processors.thinking_budget:ThinkingBudget",
            api=">=1.0,<2",
            summary="Forces the end of thoughts that are too long.",
            capabilities=capabilities.THINKING_BUDGET,
            options=ThinkingBudgetOptions,
        )


class Penalties:
    """`penalties`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="logits_processor",
            name="penalties",
            implementation="slotwise_samplers.processors.penalties:Penalties",
            api=">=1.0,<2",
            summary="Repetition, frequency and presence penalties.",
            capabilities=capabilities.PENALTIES,
        )

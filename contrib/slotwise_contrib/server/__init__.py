"""The OpenAI-compatible HTTP server.

A request's way: `body` (bytes -> checked fields) -> `endpoint` (what completions and chat ask, each in its own file) -> `generation`
(the engine's outputs -> pieces of choices) -> `answers` (one JSON document, or a stream of events).
"""

"""Structured output: forms, JSON schemas and tool calls as grammars that an answer cannot leave."""

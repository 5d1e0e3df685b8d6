"""The HTTP room: OpenAI- and Anthropic-compatible routes over the engine."""

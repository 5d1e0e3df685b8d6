"""The engine for model files that the native core does not know: llama.cpp, in the wheel ``xllamacpp``."""

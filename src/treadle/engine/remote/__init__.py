"""Any OpenAI-compatible server as an engine: vLLM, llama.cpp's server, another Treadle, a cloud.

Leaves to others: computing anything.
"""

"""Turns requests into tokens: scheduling, KV blocks, sampling policy and the loop that joins them.

What is in a file belongs to ``treadle.models``, what is in the machine to ``treadle.hardware``.
"""

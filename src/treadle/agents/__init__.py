"""Tasks that a model works on with tools.

What answers belongs to ``treadle.engine``, what the machine has to ``treadle.hardware``.
"""

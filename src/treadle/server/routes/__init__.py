"""One file per family of routes; each has a ``router``."""

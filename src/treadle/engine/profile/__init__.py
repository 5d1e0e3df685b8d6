"""Where the time of a model goes on this machine, and what bounds it: ``treadle profile``."""

"""KV blocks: pools and tables of them, the prefix cache, and where blocks outlive requests, in memory and on disk."""

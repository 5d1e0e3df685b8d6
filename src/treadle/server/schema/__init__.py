"""What request bodies may hold, one file per family of routes."""

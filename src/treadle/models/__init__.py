"""What is in model files, and where the files come from; running them is the engine's job."""

"""What is in the machine and how much of it this process may use; what to do with it is the engine's decision."""

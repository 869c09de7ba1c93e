"""What is wrong with a store, and what can be saved."""

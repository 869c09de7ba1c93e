"""Random commands on the engine and on the model, side by side."""

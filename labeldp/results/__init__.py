"""Results as folders: a model, its certificate, the run that made it, a card for people and its measures. No pickle."""

"""Accuracy experiments: settings as data (TOML), results as JSON lines."""

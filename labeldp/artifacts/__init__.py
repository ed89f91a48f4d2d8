"""Results as folders: a model, its certificate, the run that made it, a card for people and its measures. No pickle."""

from labeldp.artifacts.folder import ArtifactError, Result, drafting, read
from labeldp.artifacts.verifying import verify_folder

__all__ = ["ArtifactError", "Result", "drafting", "read", "verify_folder"]

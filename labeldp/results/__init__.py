"""Results as folders: a model, its certificate, the run that made it, a card for people and its measures. No pickle."""

from labeldp.results.folder import ArtifactError, Result, drafting, read
from labeldp.results.verify import verify_folder

__all__ = ["ArtifactError", "Result", "drafting", "read", "verify_folder"]

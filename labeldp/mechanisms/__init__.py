"""Answer queries of a vault. Besides the door and the core, this is the only folder that sees a true label."""

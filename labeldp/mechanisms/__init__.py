"""The queries that a vault answers. Besides the door and the core, this is the only folder that sees a true label."""

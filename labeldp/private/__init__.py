"""The only folder that ever sees a true label: the audit perimeter."""

"""Tables and data sets: public features out, labels straight into a vault."""

"""Hold what must be believed for a certificate to be true: sealed labels, noise, events, accounting, ledger, claim."""

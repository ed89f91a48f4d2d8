"""What must be believed for a certificate to be true: labels under seal, noise, events, accounting, ledger, claim."""

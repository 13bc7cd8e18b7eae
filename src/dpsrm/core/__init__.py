"""Facts everything else is built on: errors, events, the ledger, secrets, random streams. No torch here."""

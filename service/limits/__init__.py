"""Who may come in, and with how much."""

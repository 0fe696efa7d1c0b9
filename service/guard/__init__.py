"""Who may come in, with how much, and how long the service waits for them."""

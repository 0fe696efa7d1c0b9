"""Images by address: the service fetches them from the hosts that the operator allows."""

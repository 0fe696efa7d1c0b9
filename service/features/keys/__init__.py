"""The keys of callers: the file of them, their scopes, rates and ends, and how one is made."""

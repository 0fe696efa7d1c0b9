"""What computes, as its callers see it: the interface, and the answers that it returns."""

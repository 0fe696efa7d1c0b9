"""What computes: batches, workers, replicas of a model, the models that are loaded."""

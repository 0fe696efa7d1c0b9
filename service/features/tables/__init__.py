"""Maps as rows of a table, for the manifests of batches and the results of jobs."""

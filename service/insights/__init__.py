"""What many explanations show together: audits, and the report and clusters of a batch or job."""

"""Keys, retries, limits, approvals and jobs: what makes calls safe to repeat and hard to overdo."""

"""`headrace cost`: what a workload needs of machines, bucket and Postgres, and what that costs."""

"""What surrounds the kubelet: the control plane's programs, DNS, a metrics API, the load balancer, Postgres and S3."""

"""`make kubernetes`: the Helm chart on a real Kubernetes control plane, without containers.

Real: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy (iptables), kubectl, helm, Postgres, an
S3 server, Spark, and every Headrace process. Written here: a kubelet that runs containers as local processes in
separate network, mount and process namespaces (kubelet/), a DNS server for Services, a metrics API that reports the
numbers that the test sets, and a stand-in for the cloud's load balancer (cluster/).

Place: `python -m tests.kubernetes` enters namespaces, starts everything and runs the scenarios (scenarios/).
Invariant: all processes and mounts are in namespaces of one process; when it ends, the kernel removes all of them.
"""

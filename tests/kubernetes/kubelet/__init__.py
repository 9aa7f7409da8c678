"""A kubelet for tests: runs the containers of pods as local processes.

A pod gets a network namespace with an address; a container gets a view of this machine's files in an overlay, with the
pod's volumes mounted, and a process namespace in which its command is process 1. Images are names for a PATH, an
environment and an entrypoint (images.py). Limits of memory and processor time are not enforced.
"""

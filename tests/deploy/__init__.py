"""Checks of deploy/: the Helm chart, the image file, the compose file and the alert rules."""

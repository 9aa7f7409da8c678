"""Fixtures of other folders that the test of a built image uses."""

from tests.fixtures_s3 import aws_credentials, real_s3_url

__all__ = ["aws_credentials", "real_s3_url"]

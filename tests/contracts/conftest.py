"""Fixtures that the contract suites share."""

from tests.fixtures_s3 import aws_credentials, moto_url, real_s3_url

__all__ = ["aws_credentials", "moto_url", "real_s3_url"]

"""Fixtures that the contract suites share."""

from tests.fixtures_s3 import aws_credentials, https_s3, https_server, moto_url, real_s3_url, s3_url

__all__ = ["aws_credentials", "https_s3", "https_server", "moto_url", "real_s3_url", "s3_url"]

"""The S3 fixtures that the doctor's tests use."""

from tests.fixtures_s3 import aws_credentials, moto_url

__all__ = ["aws_credentials", "moto_url"]

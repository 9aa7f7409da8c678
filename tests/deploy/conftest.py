"""Fixtures of other folders that the test of a built image uses, and the page of metrics of one real process."""

from tests.deploy.live_scrape import scrape
from tests.fixtures_s3 import aws_credentials, real_s3_url

__all__ = ["aws_credentials", "real_s3_url", "scrape"]

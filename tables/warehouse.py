"""The files of a warehouse, in pyiceberg's words: the store of its address, and who asks it.

Place: under catalog.py. Addresses on Azure are those that Spark and other engines use. Arrow's own client is given an
account once, and wants a container and a path; the addresses have the account in each of them, which pyiceberg leaves
there: AzureFileIO takes it out.
Invariant: one account per catalog: an address of another account is refused, not read from this one. A secret is in no
property that is shown.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from headrace.config.addresses import azure_place
from headrace.config.settings import Settings

ACCOUNT = "adls.account-name"


class AzureFileIO(PyArrowFileIO):
    """The properties are pyiceberg's."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, container, and the container with the path. ValueError for another account than ACCOUNT."""
        place = azure_place(location)
        if place is None:
            return PyArrowFileIO.parse_location(location, properties)
        account = properties.get(ACCOUNT, place.account)
        if account != place.account:
            raise ValueError(f"a file of another account: account={place.account} of_catalog={account}")
        return urlsplit(location).scheme, place.container, f"{place.container}/{place.prefix}".rstrip("/")


FILE_IO = f"{AzureFileIO.__module__}.{AzureFileIO.__qualname__}"
"""The name that pyiceberg has for it in its properties."""


def place_of_files(settings: Settings) -> dict[str, str]:
    """Return pyiceberg's properties of the warehouse and of its store. On Azure it is an address that all engines
    know.
    """
    given = {"warehouse": settings.tables_warehouse}
    if settings.s3_endpoint:
        style = "false" if settings.s3_path_style else "true"
        given |= {"s3.endpoint": settings.s3_endpoint, "s3.force-virtual-addressing": style}
    if settings.s3_region:
        given["s3.region"] = settings.s3_region
    if settings.gcs_endpoint:
        given["gcs.service.host"] = settings.gcs_endpoint
    if (place := azure_place(settings.tables_warehouse)) is not None:
        cloud = "core.windows.net" if place.endpoint is None else place.endpoint.partition(".blob.")[2]
        host = f"{place.account}.dfs.{cloud}"
        given |= {"warehouse": f"abfss://{place.container}@{host}/{place.prefix}", ACCOUNT: place.account}
        given["py-io-impl"] = FILE_IO
        if endpoint := settings.azure_endpoint or place.endpoint:
            parts = urlsplit(endpoint)
            for service in ("blob", "dfs"):  # an authority that begins with a dot comes after the account
                given[f"adls.{service}-storage-authority"] = parts.netloc.removeprefix(place.account)
                given[f"adls.{service}-storage-scheme"] = parts.scheme
    return given


_NEVER_MS = "4102444800000"
"""A time in the year 2100."""


def secrets_of_files() -> dict[str, str]:
    """Return pyiceberg's properties that have secrets: the key of an account. Arrow finds other identities."""
    key, signature = os.environ.get("AZURE_STORAGE_KEY"), os.environ.get("AZURE_STORAGE_SAS_TOKEN")
    found = {"adls.sas-token": signature} if signature else {"adls.account-key": key}
    if os.environ.get("STORAGE_EMULATOR_HOST"):  # it takes any token, and Arrow would ask the machine for one
        found |= {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": _NEVER_MS}
    return {name: value for name, value in found.items() if value}

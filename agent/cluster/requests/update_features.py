"""UpdateFeatures (key 57, versions 0-2): changes the feature levels of the cluster.

Place: request fields to FeatureLevelRecords in the metadata log.
Invariant: all updates of a request or none, decided on exactly the image that they follow. A level
is active only while every registered agent supports it; that of segment keys is refused while a running compactor is
known not to have it. A compactor that starts later, or that was not heard for a minute, changes nothing: its swaps are
refused. The level of sealed secrets rises by `headrace storage seal-secrets` only, which seals what is stored; before
that it is not offered (protocol/api_versions.py).
Source: KIP-584, KIP-778 (upgrade types, validate only), KIP-1022 (one error for all, version 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1.response import UpdatableFeatureResult
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

from headrace.agent.cluster.log_change import LogChange, Verdict
from headrace.metastore.api.agents import (
    COMMIT_SHARDS,
    METADATA_FORMAT,
    SEALED_SECRETS,
    SEGMENT_KEYS,
    TRANSACTION_VERSION,
)
from headrace.metastore.api.cluster import ClusterApi, MetadataRecord
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT, change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import feature_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError, InvalidError, UnsupportedFeatureError

UPGRADE = 1
_COMPACTORS_NEED = {SEGMENT_KEYS: 1, METADATA_FORMAT: PARTITION_CHANGES_FORMAT, TRANSACTION_VERSION: 1}
"""The lowest levels for which running compactors are looked at."""


class UpdateFeatures:
    """Raise or lower the levels of features."""

    def __init__(self, change: LogChange, processes: ClusterApi) -> None:
        self._change, self._processes = change, processes

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, UpdateFeaturesRequest)
        verdict = await self._update(entity, request.received_at + entity.timeout.total_seconds())
        return reply(request, _response(schema, entity, *verdict))

    async def _update(self, entity: UpdateFeaturesRequest, deadline: float) -> Verdict:
        names = [update.feature for update in entity.feature_updates]
        if not names or len(set(names)) < len(names):
            return Verdict(ErrorCode.invalid_request, "name at least one feature, without duplicates")
        try:
            await self._refuse_for_compactors(entity.feature_updates)
        except HeadraceError as error:
            return Verdict(ErrorCode(feature_error(error)), str(error))
        refused: list[Verdict] = []

        def judge(image: MetadataImage) -> list[MetadataRecord]:
            refused.clear()
            try:
                records = _records(image, entity.feature_updates)
            except InvalidError as error:
                refused.append(Verdict(ErrorCode(feature_error(error)), str(error)))
                return []
            return [] if getattr(entity, "validate_only", False) else records

        verdict = await self._change.append(judge, deadline)
        return refused[0] if refused else verdict

    async def _refuse_for_compactors(self, updates: Sequence[FeatureUpdateKey]) -> None:
        """UnsupportedFeatureError if a running one lacks the level: its swaps would be refused, or it could not read
        the metadata log."""
        for update in updates:
            lowest = _COMPACTORS_NEED.get(update.feature)
            if lowest is not None and update.max_version_level >= lowest:
                lacking = await self._processes.compactors_without(update.feature, update.max_version_level)
                if lacking:
                    raise UnsupportedFeatureError(
                        f"a compactor does not support the level: feature={update.feature}"
                        f" level={update.max_version_level} processes={','.join(lacking)}"
                    )


def _records(image: MetadataImage, updates: Sequence[FeatureUpdateKey]) -> list[MetadataRecord]:
    """The records to append; errors as change_feature's."""
    for update in updates:
        if update.feature == SEALED_SECRETS and update.max_version_level > 0 and SEALED_SECRETS not in image.features:
            raise UnsupportedFeatureError(
                f"`headrace storage seal-secrets` raises the level, and seals what is stored: feature={SEALED_SECRETS}"
            )
        if update.feature == COMMIT_SHARDS and update.max_version_level != image.commit_shards(0):
            raise UnsupportedFeatureError(
                f"`headrace storage grow-commit-shards` raises the level, and makes the shards: feature={COMMIT_SHARDS}"
            )
    changes = (
        change_feature(
            image, update.feature, max(update.max_version_level, 0), allow_downgrade=_allows_downgrade(update)
        )
        for update in updates
    )
    return [record for record in changes if record is not None]


def _allows_downgrade(update: FeatureUpdateKey) -> bool:
    """Version 0 has a flag, later versions a type: 2 safe and 3 unsafe downgrades, which are the same here."""
    return bool(getattr(update, "allow_downgrade", False)) or getattr(update, "upgrade_type", UPGRADE) != UPGRADE


def _response(schema: Schema, entity: UpdateFeaturesRequest, code: ErrorCode, message: str | None) -> Any:
    """Return the response; below version 2 each feature also has the error."""
    values: dict[str, Any] = {"error_code": code, "error_message": message}
    if schema.version < 2:
        values["results"] = tuple(
            schema.make(UpdatableFeatureResult, feature=update.feature, error_code=code, error_message=message)
            for update in entity.feature_updates
        )
    return schema.response(**values)

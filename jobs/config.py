"""All settings as one value, which a job has; and the error for wrong usage and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from pipeline.settings import (
    AlertsConfig,
    CaptureConfig,
    CollectorConfig,
    ComqcConfig,
    EodConfig,
    GovernanceConfig,
    HistoryConfig,
    IngestConfig,
    LakeConfig,
    NamesConfig,
    PendingConfig,
    PrivacyConfig,
    QualityConfig,
    QueuesConfig,
    QuotasConfig,
    ReadsConfig,
    RunConfig,
    SessionsConfig,
    StoreConfig,
    TimersConfig,
    TransfersConfig,
)


class ConfigError(Exception):
    """Wrong usage or configuration: the job prints the message as one line and exits with code 2."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, by section. ``Config()`` holds the defaults."""

    lake: LakeConfig = LakeConfig()
    run: RunConfig = RunConfig()
    ingest: IngestConfig = IngestConfig()
    capture: CaptureConfig = CaptureConfig()
    store: StoreConfig = StoreConfig()
    comqc: ComqcConfig = ComqcConfig()
    pending: PendingConfig = PendingConfig()
    reads: ReadsConfig = ReadsConfig()
    queues: QueuesConfig = QueuesConfig()
    history: HistoryConfig = HistoryConfig()
    eod: EodConfig = EodConfig()
    sessions: SessionsConfig = SessionsConfig()
    transfers: TransfersConfig = TransfersConfig()
    timers: TimersConfig = TimersConfig()
    alerts: AlertsConfig = AlertsConfig()
    quotas: QuotasConfig = QuotasConfig()
    names: NamesConfig = NamesConfig()
    collector: CollectorConfig = CollectorConfig()
    quality: QualityConfig = QualityConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    governance: GovernanceConfig = GovernanceConfig()


SECTIONS: dict[str, type] = {
    name: tree for name, tree in get_type_hints(Config).items() if is_dataclass(tree) and isinstance(tree, type)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Description of one setting: dotted key, type, default, meaning and bounds."""

    key: str
    value_type: Any
    default: object
    meaning: str
    minimum: float | None
    maximum: float | None


def list_settings() -> dict[str, Setting]:
    """Return all settings by dotted key, in the order of the dataclasses."""
    found: dict[str, Setting] = {}
    for section, tree in SECTIONS.items():
        hints = get_type_hints(tree)
        for each in fields(tree):
            key = f"{section}.{each.name}"
            found[key] = _setting_from_field(key, hints[each.name], each)
    return found


def _setting_from_field(key: str, value_type: object, each: Field[Any]) -> Setting:
    meta: Mapping[str, Any] = each.metadata
    return Setting(key, value_type, each.default, meta["meaning"], meta["minimum"], meta["maximum"])

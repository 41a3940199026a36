"""SQL that gives a machine one name in the views of the estate, whichever of its identifiers a row has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OF_GUID: Final = "OVER (PARTITION BY guid)"
_OF_ADDRESS: Final = "OVER (PARTITION BY address)"


def _sole(value: str, window: str) -> str:
    """Return the SQL of the one value that all rows of a window have that have any; null where they have several."""
    return f"CASE WHEN min({value}) {window} = max({value}) {window} THEN min({value}) {window} END"


# Names are compared by their first label. The length stands before a name, so that the greatest is the longest.
_SEEN: Final = """SELECT DISTINCT queue_manager_id AS guid, address, host_name, split_part(host_name, '.', 1) AS label,
            lpad(CAST(length(host_name) AS string), 6, '0') || host_name AS long_name
          FROM silver.hosts"""
_OWN_NAMES: Final = f"""SELECT guid, address, host_name, label,
            CASE WHEN guid IS NOT NULL THEN max(long_name) {_OF_GUID} END AS own_name,
            CASE WHEN guid IS NOT NULL THEN {_sole("label", _OF_GUID)} END AS own_label,
            CASE WHEN address IS NOT NULL THEN max(long_name) {_OF_ADDRESS} END AS address_name,
            CASE WHEN address IS NOT NULL THEN {_sole("label", _OF_ADDRESS)} END AS address_label
          FROM ({_SEEN}) AS seen"""
_OF_GUIDS: Final = f"""SELECT *, CASE WHEN own_name IS NOT NULL THEN own_label
              WHEN guid IS NOT NULL THEN {_sole("address_label", _OF_GUID)} END AS guid_label,
            CASE WHEN guid IS NOT NULL THEN max(CASE WHEN address_label = coalesce(own_label, address_label)
              THEN address_name END) {_OF_GUID} END AS near_name
          FROM ({_OWN_NAMES}) AS own_names"""
_OF_ADDRESSES: Final = f"""SELECT *, {_sole("guid", _OF_ADDRESS)} AS sole_guid,
            CASE WHEN guid_label IS NULL THEN guid ELSE substr(greatest(own_name, near_name), 7) END AS guid_machine
          FROM ({_OF_GUIDS}) AS of_guids"""
_MACHINES: Final = f"""SELECT *, CASE
              WHEN address_label IS NULL THEN
                CASE WHEN sole_guid IS NOT NULL THEN max(guid_machine) {_OF_ADDRESS} ELSE address END
              WHEN sole_guid IS NOT NULL AND max(guid_label) {_OF_ADDRESS} = address_label
                THEN max(guid_machine) {_OF_ADDRESS}
              ELSE substr(address_name, 7) END AS address_machine
          FROM ({_OF_ADDRESSES}) AS of_addresses"""
MACHINE_NAMES_SQL: Final = f"""(
          SELECT identifier, CASE WHEN min(machine) = max(machine) THEN min(machine) ELSE identifier END AS machine
          FROM (
            SELECT CASE part WHEN 1 THEN guid WHEN 2 THEN address ELSE host_name END AS identifier,
              CASE part WHEN 1 THEN guid_machine WHEN 2 THEN address_machine
                ELSE CASE label WHEN guid_label THEN guid_machine WHEN address_label THEN address_machine
                  ELSE host_name END END AS machine
            FROM (SELECT *, explode(array(1, 2, 3)) AS part FROM ({_MACHINES}) AS machines) AS parts
          ) AS named WHERE identifier IS NOT NULL GROUP BY identifier
        )"""
"""A subquery: the ``machine`` of each ``identifier`` in silver.hosts, an address, GUID or host name.

It is the host name of the address or GUID, else the one of the other that was seen with it, where there is one name (of
a short one and its full one the full one), else the GUID, else the address. What has several names, as a cloned GUID or
an address behind NAT, stays as it is. An identifier that is not there is its own machine. Valid for Spark and DuckDB.
"""


def with_machines(rows: str, identifiers: Mapping[str, str], columns: str) -> str:
    """Return a subquery over ``rows``: some ``columns``, and the machines of identifiers.

    ``identifiers`` are SQL expressions of addresses, GUIDs or names (of the table ``rows``), by the name of the column
    that has their machine.
    """
    selected, joins = [columns], []
    for column, identifier in identifiers.items():
        selected.append(f"coalesce({column}_names.machine, {identifier}) AS {column}")
        joins.append(f"LEFT JOIN {MACHINE_NAMES_SQL} AS {column}_names ON {column}_names.identifier = {identifier}")
    return f"(SELECT {', '.join(selected)} FROM {rows} AS rows {' '.join(joins)})"

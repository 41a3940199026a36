"""SQL that gives a machine one name in the views of the estate, whichever of its identifiers a row has."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = "max_by(host_name, struct(name_length, host_name))"

MACHINE_NAMES_SQL: Final = f"""known_names AS (
          SELECT DISTINCT identifier, is_guid, host_name, split_part(host_name, '.', 1) AS label,
            length(host_name) AS name_length
          FROM (
            SELECT queue_manager_id AS identifier, TRUE AS is_guid, host_name FROM silver.hosts
            UNION ALL
            SELECT address, FALSE, host_name FROM silver.hosts
          ) AS named WHERE identifier IS NOT NULL AND host_name IS NOT NULL
        ), own_names AS (
          SELECT identifier, is_guid, CASE WHEN min(label) = max(label) THEN max(label) END AS label,
            {_LONGEST} AS host_name, max(name_length) AS name_length
          FROM known_names GROUP BY identifier, is_guid
        ), guid_places AS (
          SELECT DISTINCT queue_manager_id AS guid, address FROM silver.hosts
          WHERE queue_manager_id IS NOT NULL AND address IS NOT NULL
        ), names_of_guids AS (
          SELECT identifier AS guid, label, host_name, name_length FROM own_names WHERE is_guid
          UNION ALL
          SELECT guid, there.label, there.host_name, there.name_length
          FROM guid_places JOIN own_names AS there ON there.identifier = address
            LEFT JOIN own_names AS here ON here.identifier = guid
          WHERE there.label IS NOT NULL AND (here.identifier IS NULL OR here.label = there.label)
        ), named_guids AS (
          SELECT guid, CASE WHEN min(label) = max(label) AND count(label) = count(*) THEN {_LONGEST} ELSE guid END
            AS machine
          FROM names_of_guids GROUP BY guid
        ), sole_guids AS (
          SELECT address, min(guid) AS guid FROM guid_places GROUP BY address HAVING min(guid) = max(guid)
        ), named_addresses AS (
          SELECT every.address, CASE WHEN own.label IS NULL THEN coalesce(machine, sole.guid, every.address)
              WHEN split_part(machine, '.', 1) = own.label AND length(machine) > name_length THEN machine
              ELSE own.host_name END AS machine
          FROM (SELECT DISTINCT address FROM silver.hosts WHERE address IS NOT NULL) AS every
            LEFT JOIN own_names AS own ON own.identifier = every.address
            LEFT JOIN sole_guids AS sole ON sole.address = every.address
            LEFT JOIN named_guids ON named_guids.guid = sole.guid
        ), named_machines AS (
          SELECT address AS identifier, machine FROM named_addresses
          UNION ALL
          SELECT guid, machine FROM named_guids
        ), machine_names AS (
          SELECT identifier, min(machine) AS machine FROM (
            SELECT * FROM named_machines
            UNION ALL
            SELECT host_name, CASE WHEN min(machine) = max(machine) THEN max(machine) ELSE host_name END
            FROM known_names JOIN named_machines USING (identifier) GROUP BY host_name
          ) AS every GROUP BY identifier
        )"""
"""Common table expression ``machine_names``: the machine of each address, GUID and host name in silver.hosts.

It is the host name of the address or GUID, else the one of the other that was seen with it, where there is one name (of
a short one and its full one the full one), else the GUID, else the address. What has several names, as a cloned GUID or
an address behind NAT, stays as it is. An identifier that is not there is its own machine. Valid for Spark and DuckDB.
"""


def with_machines(rows: str, identifiers: dict[str, str], columns: str) -> str:
    """Return a subquery over ``rows``: some ``columns``, and the machines of identifiers.

    ``identifiers`` are SQL expressions of addresses, GUIDs or names (of the table ``rows``), by the name of the column
    that has their machine. The query that it is part of has ``machine_names``.
    """
    selected, joins = [columns], []
    for column, identifier in identifiers.items():
        selected.append(f"coalesce({column}_names.machine, {identifier}) AS {column}")
        joins.append(f"LEFT JOIN machine_names AS {column}_names ON {column}_names.identifier = {identifier}")
    return f"(SELECT {', '.join(selected)} FROM {rows} AS rows {' '.join(joins)})"

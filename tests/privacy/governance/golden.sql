COMMENT ON SCHEMA `main`.`msmq_bronze` IS 'Message Queuing: what captures and snapshots contain, as read';
COMMENT ON SCHEMA `main`.`msmq_silver` IS 'Message Queuing: decoded calls, messages, sessions and snapshots';
CREATE SCHEMA IF NOT EXISTS `main`.`msmq_shared`;
COMMENT ON SCHEMA `main`.`msmq_shared` IS 'Message Queuing: views of all tables, without columns that hold content of messages, addresses, hosts, labels, queues, senders';
CREATE OR REPLACE VIEW `main`.`msmq_shared`.`bronze_quarantine` (
  `quarantine_key` COMMENT 'key of the four-tuple, the TCP sequence number of the run\'s first byte, seen_at and reason',
  `capture_id` COMMENT 'bronze.capture_files; null for lines of snapshot files',
  `connection_id` COMMENT 'bronze.connections; null when the connection is not one of ours',
  `packet_number` COMMENT 'packet of the run\'s first byte, from 1',
  `byte_offset` COMMENT 'of the run\'s first byte in the decompressed capture, bytes',
  `size_bytes` COMMENT 'length of the run, bytes',
  `source_line` COMMENT 'line of the snapshot file, from 1; null for captures',
  `reason` COMMENT 'why these bytes belong nowhere, a short code',
  `seen_at` COMMENT 'time of the packet of the run\'s first byte, UTC',
  `event_date` COMMENT 'UTC date of seen_at; files of other dates are not read',
  `run_id` COMMENT 'run that wrote the row; may differ between two ways of reading the same files',
  `ingested_at` COMMENT 'clock time of that run, UTC; may differ like run_id'
)
COMMENT 'One row per contiguous run of input bytes that belongs nowhere, with its position and the reason.'
AS SELECT `quarantine_key`, `capture_id`, `connection_id`, `packet_number`, `byte_offset`, `size_bytes`, `source_line`, `reason`, `seen_at`, `event_date`, `run_id`, `ingested_at` FROM `main`.`msmq_bronze`.`quarantine`;
CREATE OR REPLACE VIEW `main`.`msmq_shared`.`silver_queue_aliases` (
  `named_as` COMMENT 'what queue was shown as: path_name, format_name',
  `evidence` COMMENT 'snapshot, open, configuration',
  `call_key` COMMENT 'bronze.rpc_calls; null when no call shows it',
  `snapshot_id` COMMENT 'silver.queue_snapshots; null when no snapshot shows it',
  `observed_at` COMMENT 'when it was shown, UTC; null for configuration',
  `errors` COMMENT 'what did not decode: code, field, offset in the stub in bytes; empty when all is well',
  `decoder_version` COMMENT 'version of the decoders that made the row',
  `event_date` COMMENT 'UTC date of observed_at; files of other dates are not read',
  `run_id` COMMENT 'run that wrote the row; may differ between two ways of reading the same files'
)
COMMENT 'Which texts name the same queue: a row for each text of two and each kind of evidence, the first piece of it.'
AS SELECT `named_as`, `evidence`, `call_key`, `snapshot_id`, `observed_at`, `errors`, `decoder_version`, `event_date`, `run_id` FROM `main`.`msmq_silver`.`queue_aliases`;
CREATE OR REPLACE VIEW `main`.`msmq_shared`.`silver_hosts` (
  `host_key` COMMENT 'key of queue_manager_id, host_name, address and source',
  `queue_manager_id` COMMENT 'GUID of the queue manager, lower case; null where it was not seen with these',
  `source` COMMENT 'where they were seen together: snapshot, message, format_name, endpoint_mapper, session',
  `first_seen_at` COMMENT 'earliest time that they were, UTC',
  `last_seen_at` COMMENT 'latest time that they were, UTC',
  `sightings` COMMENT 'snapshots, messages, opened queues, answers or handshakes that show it',
  `errors` COMMENT 'what did not decode: code, field, offset in the stub in bytes; empty when all is well',
  `decoder_version` COMMENT 'version of the decoders that made the row',
  `event_date` COMMENT 'UTC date of first_seen_at; files of other dates are not read',
  `run_id` COMMENT 'run that wrote the row; may differ between two ways of reading the same files'
)
COMMENT 'One row per combination of queue manager identifier, host name and address seen together, and per place of it.'
AS SELECT `host_key`, `queue_manager_id`, `source`, `first_seen_at`, `last_seen_at`, `sightings`, `errors`, `decoder_version`, `event_date`, `run_id` FROM `main`.`msmq_silver`.`hosts`;
ALTER TABLE `main`.`msmq_bronze`.`quarantine` ALTER COLUMN `source_path` SET TAGS ('msmq_data' = 'personal');
ALTER TABLE `main`.`msmq_bronze`.`quarantine` ALTER COLUMN `sample` SET TAGS ('msmq_data' = 'body');
ALTER TABLE `main`.`msmq_silver`.`queue_aliases` ALTER COLUMN `queue` SET TAGS ('msmq_data' = 'personal');
ALTER TABLE `main`.`msmq_silver`.`queue_aliases` ALTER COLUMN `canonical_queue` SET TAGS ('msmq_data' = 'personal');
ALTER TABLE `main`.`msmq_silver`.`queue_aliases` ALTER COLUMN `other_queue` SET TAGS ('msmq_data' = 'personal');
ALTER TABLE `main`.`msmq_silver`.`hosts` ALTER COLUMN `host_name` SET TAGS ('msmq_data' = 'personal');
ALTER TABLE `main`.`msmq_silver`.`hosts` ALTER COLUMN `address` SET TAGS ('msmq_data' = 'personal');
GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`msmq_bronze` TO `engineers`;
GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`msmq_silver` TO `engineers`;
GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`msmq_shared` TO `analysts`;
GRANT USE SCHEMA, SELECT ON SCHEMA `main`.`msmq_shared` TO `a``b@example.com`;
ALTER TABLE `main`.`msmq_bronze`.`quarantine` SET OWNER TO `msmq owners`;
ALTER VIEW `main`.`msmq_shared`.`bronze_quarantine` SET OWNER TO `msmq owners`;
ALTER TABLE `main`.`msmq_silver`.`queue_aliases` SET OWNER TO `msmq owners`;
ALTER VIEW `main`.`msmq_shared`.`silver_queue_aliases` SET OWNER TO `msmq owners`;
ALTER TABLE `main`.`msmq_silver`.`hosts` SET OWNER TO `msmq owners`;
ALTER VIEW `main`.`msmq_shared`.`silver_hosts` SET OWNER TO `msmq owners`;
